#include "train/sample.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "data/gpt2_tokenizer.h"
#include "train/generator.h"
#include "train/token_sampler.h"
#include "train/trained_model.h"

namespace goat {

namespace {

// What is wrong with the options whatever the model; TokenSampler checks its own.
void check_options(const SampleOptions& options) {
  constexpr std::int64_t most_tokens = 16'000'000;  // positions stay exact in fp32
  if (options.tokens < 1 || options.tokens > most_tokens)
    throw ConfigError("--tokens " + std::to_string(options.tokens) + ": expected an integer from 1 to " +
                      std::to_string(most_tokens));
  const auto known = {"auto", "bytes", "gpt2", "ids"};
  if (std::ranges::find(known, options.tokenizer) == known.end())
    throw ConfigError("--tokenizer \"" + options.tokenizer +
                      "\" is not allowed; expected auto, bytes, gpt2 or ids");
}

std::string tokenizer_of(const Config& config) {
  constexpr std::int64_t gpt2 = 50257, gpt2_padded = 50304;
  if (config.data.source != "shards") return "ids";
  if (config.model.vocab == 256) return "bytes";
  if (config.model.vocab >= gpt2 && config.model.vocab <= gpt2_padded) return "gpt2";
  throw ConfigError("--tokenizer auto: cannot tell which tokenizer has model.vocab = " +
                    std::to_string(config.model.vocab) +
                    " (256: bytes, 50257: gpt2); give --tokenizer bytes, gpt2 or ids");
}

std::unique_ptr<Tokenizer> open_tokenizer(const SampleOptions& options, const Config& config) {
  const std::string name = options.tokenizer == "auto" ? tokenizer_of(config) : options.tokenizer;
  std::unique_ptr<Tokenizer> tokenizer;
  if (name == "bytes") tokenizer = std::make_unique<ByteTokenizer>();
  if (name == "ids") tokenizer = std::make_unique<IdTokenizer>(config.model.vocab);
  if (name == "gpt2") {
    if (options.tokenizer_dir.empty())
      throw ConfigError("the tokenizer gpt2 needs --tokenizer-dir, a folder with vocab.bpe and encoder.json");
    tokenizer = std::make_unique<Gpt2Tokenizer>(options.tokenizer_dir);
  }
  if (tokenizer->vocabulary() > config.model.vocab)
    throw ConfigError("--tokenizer " + name + " has " + std::to_string(tokenizer->vocabulary()) +
                      " tokens, the model only " + std::to_string(config.model.vocab) +
                      " (model.vocab): it was trained with another tokenizer");
  return tokenizer;
}

// What the model starts from, and how much of it is the user's.
struct Prompt {
  std::vector<std::int32_t> tokens;  // at least one
  std::size_t unseen = 0;            // leading tokens that are not shown
};

// Where training blocks begin with BOS, so does every sequence here. Elsewhere an empty prompt becomes a
// newline (ids: token 0, which is shown).
Prompt read_prompt(const SampleOptions& options, const Config& config, const Tokenizer& tokenizer) {
  Prompt prompt;
  try {
    prompt.tokens = tokenizer.encode(options.prompt);
  } catch (const std::invalid_argument& error) {
    throw ConfigError(std::string("--prompt: ") + error.what());
  }
  const bool text = config.data.source == "shards";
  if (text && config.data.block == "bos") {
    prompt.tokens.insert(prompt.tokens.begin(), static_cast<std::int32_t>(config.data.bos));
    prompt.unseen = 1;
  } else if (prompt.tokens.empty()) {
    const bool newline = tokenizer.name() != std::string("ids");
    prompt.tokens = newline ? tokenizer.encode("\n") : std::vector<std::int32_t>{0};
    prompt.unseen = newline ? prompt.tokens.size() : 0;
  }
  return prompt;
}

// stdout, written through at once but in whole characters.
class TextStream {
 public:
  void write(const std::string& bytes) {
    held_back_ += bytes;
    const std::size_t ready = complete_utf8(held_back_);
    put(held_back_.substr(0, ready));
    held_back_.erase(0, ready);
  }
  void finish() { put(held_back_); }
  bool reader_gone() const { return reader_gone_; }

 private:
  void put(const std::string& bytes) {
    if (reader_gone_ || bytes.empty()) return;
    if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size() && std::fflush(stdout) == 0)
      return;
    if (errno != EPIPE)
      throw std::runtime_error(std::string("cannot write to stdout: ") + std::strerror(errno));
    reader_gone_ = true;
  }
  std::string held_back_;
  bool reader_gone_ = false;
};

using Clock = std::chrono::steady_clock;
double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

// The rate is that of the tokens after the first, whose time is the prompt's.
void report(std::size_t prompt, std::int64_t made, double prompt_seconds, double seconds,
            const Tokenizer& tokenizer) {
  if (isatty(STDOUT_FILENO)) std::fputc('\n', stderr);
  std::fprintf(stderr, "prompt: %zu tokens in %.3f s; made: %lld tokens", prompt, prompt_seconds,
               static_cast<long long>(made));
  if (made > 1)
    std::fprintf(stderr, ", %.1f tokens/s", static_cast<double>(made - 1) / std::max(seconds, 1e-9));
  std::fprintf(stderr, "; tokenizer %s\n", tokenizer.name());
}

}  // namespace

int run_sample(const SampleOptions& options, Device& device) {
  check_options(options);
  TokenSampler sampler({.temperature = options.temperature, .top_k = options.top_k, .top_p = options.top_p},
                       static_cast<std::uint64_t>(options.seed));
  const TrainedModel model(options.checkpoint, device);
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(options, model.config());
  const Prompt prompt = read_prompt(options, model.config(), *tokenizer);
  Generator generator(model.config(), model.parameters(), device, prompt.tokens, options.tokens,
                      !options.no_cache);

  TextStream out;
  for (std::size_t i = prompt.unseen; i < prompt.tokens.size(); ++i)
    out.write(tokenizer->decode(prompt.tokens[i]));
  const Clock::time_point start = Clock::now();
  Clock::time_point first_token = start;
  std::int64_t made = 0;
  while (made < options.tokens && !out.reader_gone()) {
    // Ids that the tokenizer does not know (a padded vocabulary) are out of the draw.
    const std::span<const float> logits =
        generator.next_logits().first(static_cast<std::size_t>(tokenizer->vocabulary()));
    const std::int32_t token = sampler.sample(logits, static_cast<std::uint64_t>(made));
    generator.append(token);
    out.write(tokenizer->decode(token));
    if (++made == 1) first_token = Clock::now();
    if (token == tokenizer->end_of_text()) break;
  }
  out.finish();
  if (!out.reader_gone())
    report(prompt.tokens.size(), made, seconds_between(start, first_token),
           seconds_between(first_token, Clock::now()), *tokenizer);
  return 0;
}

}  // namespace goat
