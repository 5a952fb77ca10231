#include "train/commands/prompt.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace goat {

namespace {
// Reads everything up to the end of the file. `name` is for messages.
std::string read_to_end(std::FILE* file, const std::string& name) {
  constexpr std::size_t most_bytes = std::size_t{64} << 20;
  std::string text, piece(std::size_t{1} << 16, '\0');
  while (const std::size_t bytes = std::fread(piece.data(), 1, piece.size(), file)) {
    text.append(piece, 0, bytes);
    if (text.size() > most_bytes) throw ConfigError(name + ": more than 64 MiB are no prompt");
  }
  if (std::ferror(file)) throw ConfigError(name + ": cannot be read: " + std::strerror(errno));
  return text;
}

std::string read_prompt(const std::string& file, const std::string& name) {
  if (file == "-") {
    if (::isatty(STDIN_FILENO)) std::fprintf(stderr, "prompt (Ctrl-D ends it):\n");
    return read_to_end(stdin, name);
  }
  const std::unique_ptr<std::FILE, decltype(&std::fclose)> opened(std::fopen(file.c_str(), "rb"),
                                                                  &std::fclose);
  if (!opened) throw ConfigError(name + ": cannot be read: " + std::strerror(errno));
  return read_to_end(opened.get(), name);
}
}  // namespace

PromptText::PromptText(const std::optional<std::string>& prompt, const std::string& file)
    : option(file.empty() ? "--prompt" : "--prompt-file " + file) {
  if (!file.empty())
    text = read_prompt(file, option);
  else if (prompt)
    text = *prompt == "-" ? read_prompt("-", "--prompt -") : *prompt;
}

Prompt::Prompt(const PromptText& prompt, const Config& config, const Tokenizer& tokenizer) {
  try {
    tokens = tokenizer.encode(prompt.text);
  } catch (const std::invalid_argument& error) {
    throw ConfigError(prompt.option + ": " + error.what());
  }
  const bool text = config.data.source == "shards";
  if (text && config.data.block == "bos") {
    tokens.insert(tokens.begin(), static_cast<std::int32_t>(config.data.bos));
    unseen = 1;
  } else if (tokens.empty()) {
    tokens = tokenizer.encode(tokenizer.empty_prompt());
    unseen = tokenizer.name() == std::string("ids") ? 0 : tokens.size();
  }
}

}  // namespace goat
