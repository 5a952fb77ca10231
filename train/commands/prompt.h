// Prompt: the text that a model continues.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "train/config/config.h"

namespace goat {

// The text of --prompt TEXT or --prompt-file FILE, unchanged. "-" means stdin for both. At most one of the
// two is given. Throws ConfigError if it cannot be read.
struct PromptText {
  PromptText(const std::optional<std::string>& prompt, const std::string& file);
  std::string option;  // the option that gave the text, for messages
  std::string text;
};

struct Prompt {
  // If training blocks begin with BOS, the prompt begins with BOS too. Otherwise an empty prompt becomes what
  // the tokenizer has for it, a newline mostly (with ids: token 0, which is shown). Throws ConfigError for
  // text that the tokenizer cannot read.
  Prompt(const PromptText& prompt, const Config& config, const Tokenizer& tokenizer);
  std::vector<std::int32_t> tokens;  // at least one
  std::size_t unseen = 0;  // number of leading tokens that the user did not write and that are not shown
};

}  // namespace goat
