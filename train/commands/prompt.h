// Prompt: what a model continues.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "train/config/config.h"

namespace goat {

// The text of --prompt TEXT or --prompt-file FILE, byte by byte as it is; "-" means stdin for both. At most
// one of them is given. Throws ConfigError where it cannot be read.
struct PromptText {
  PromptText(const std::optional<std::string>& prompt, const std::string& file);
  std::string option;  // where it comes from, for messages
  std::string text;
};

struct Prompt {
  // Where training blocks begin with BOS, so does every sequence here. Elsewhere an empty prompt becomes a
  // newline (ids: token 0, which is shown). Throws ConfigError for text that the tokenizer cannot read.
  Prompt(const PromptText& prompt, const Config& config, const Tokenizer& tokenizer);
  std::vector<std::int32_t> tokens;  // at least one
  std::size_t unseen = 0;            // leading tokens that are not the user's, and are not shown
};

}  // namespace goat
