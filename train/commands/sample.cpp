#include "train/commands/sample.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "data/bpe_tokenizer.h"
#include "data/needle_task.h"
#include "data/utf8.h"
#include "train/commands/prompt.h"
#include "train/commands/token_sampler.h"
#include "train/config/counted.h"
#include "train/config/mixture.h"
#include "train/files/files.h"
#include "train/files/json_file.h"
#include "train/model/generator.h"
#include "train/run/run_tokenizer.h"
#include "train/run/trained_model.h"
#include "train/training/sources.h"

namespace goat {

namespace {

SamplingRule rule_of(const SampleOptions& options) {
  return {.temperature = options.temperature, .top_k = options.top_k, .top_p = options.top_p};
}

bool is_tokenizer(const std::string& name) {
  const auto known = {"bytes", "gpt2", "tokenizer.json", "dna", "characters", "ids"};
  return std::ranges::find(known, name) != known.end();
}

// Checks the options that do not depend on the model. The command line has checked each integer.
void check_options(const SampleOptions& options) {
  validate(rule_of(options));
  if (options.tokenizer != "auto" && !is_tokenizer(options.tokenizer))
    throw ConfigError(
        "--tokenizer \"" + options.tokenizer +
        "\" is not allowed; expected auto, bytes, gpt2, tokenizer.json, dna, characters or ids");
  if (options.prompt && !options.prompt_file.empty())
    throw ConfigError("--prompt and --prompt-file are given; leave one of them out");
  const std::string reason = options.json.empty() ? "" : why_not_writable(options.json);
  if (!reason.empty()) throw ConfigError("--json " + options.json + ": " + reason);
}

// The tokenizer for --tokenizer auto: the data's tokenizer in the run, otherwise chosen by the size
// of the vocabulary.
std::string tokenizer_of(const TrainedModel& model) {
  const Config& config = model.config();
  if (config.data.source == "passkey" || config.data.source == "niah") return "characters";
  if (config.data.source != "shards") return "ids";
  if (is_tokenizer(model.data().tokenizer)) return model.data().tokenizer;
  if (const std::string assumed = assumed_tokenizer(config); !assumed.empty()) return assumed;
  throw ConfigError(
      "--tokenizer auto: cannot tell which tokenizer has model.vocab = " +
      std::to_string(config.model.vocab) +
      " (5: dna, 256: bytes, 50257: gpt2); give --tokenizer bytes, gpt2, tokenizer.json, dna or ids");
}

// The folder with the files of the tokenizer `name`.
std::filesystem::path tokenizer_folder(const std::string& name, const SampleOptions& options,
                                       const TrainedModel& model) {
  if (!options.tokenizer_dir.empty()) return options.tokenizer_dir;
  const RunPaths paths(model.run(), model.data().working_folder);
  const std::filesystem::path folder =
      find_tokenizer(model.run(), paths, training_patterns(model.config()), name);
  if (!folder.empty()) return folder;
  std::string files;
  for (const std::string& file : tokenizer_files(name)) files += (files.empty() ? "" : " and ") + file;
  throw ConfigError("the tokenizer " + name + " needs " + files + ", and neither " +
                    (model.run() / "tokenizer").string() +
                    " nor tokenizer/ beside the training shards has that; name a folder that has with "
                    "--tokenizer-dir (the run keeps a copy)");
}

std::unique_ptr<Tokenizer> open_tokenizer(const SampleOptions& options, const TrainedModel& model) {
  const std::string name = options.tokenizer == "auto" ? tokenizer_of(model) : options.tokenizer;
  const std::int64_t vocabulary = model.config().model.vocab;
  std::unique_ptr<Tokenizer> tokenizer;
  if (name == "bytes") tokenizer = std::make_unique<ByteTokenizer>();
  if (name == "ids") tokenizer = std::make_unique<IdTokenizer>(vocabulary);
  if (name == "dna") tokenizer = std::make_unique<AlphabetTokenizer>(dna_alphabet());
  if (name == "characters") tokenizer = std::make_unique<AlphabetTokenizer>(task_characters(task_alphabet));
  if (name == "gpt2")
    tokenizer = std::make_unique<BpeTokenizer>(gpt2_tokenizer(tokenizer_folder(name, options, model)));
  if (name == "tokenizer.json")
    tokenizer = std::make_unique<BpeTokenizer>(json_tokenizer(tokenizer_folder(name, options, model) / name));
  if (tokenizer->vocabulary() > vocabulary)
    throw ConfigError("--tokenizer " + name + " has " + std::to_string(tokenizer->vocabulary()) +
                      " tokens, the model only " + std::to_string(vocabulary) +
                      " (model.vocab): it was trained with another tokenizer");
  if (!tokenizer_files(name).empty() && !options.tokenizer_dir.empty())
    remember_tokenizer(model.run(), options.tokenizer_dir, name);
  return tokenizer;
}

// Writes to stdout immediately, but only whole UTF-8 characters. A terminal gets nothing that it might obey.
class TextStream {
 public:
  void write(const std::string& bytes) {
    held_back_ += bytes;
    const std::size_t ready = complete_utf8(held_back_);
    put(held_back_.substr(0, ready));
    held_back_.erase(0, ready);
  }
  void finish() { put(std::exchange(held_back_, {})); }
  bool reader_gone() const { return reader_gone_; }

 private:
  void put(const std::string& text) {
    if (reader_gone_ || text.empty()) return;
    const std::string bytes = to_terminal_ ? terminal_text(text) : text;
    if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size() && std::fflush(stdout) == 0)
      return;
    if (errno != EPIPE)
      throw std::runtime_error(std::string("cannot write to stdout: ") + std::strerror(errno));
    reader_gone_ = true;
  }
  std::string held_back_;
  bool to_terminal_ = isatty(STDOUT_FILENO) == 1;
  bool reader_gone_ = false;
};

using Clock = std::chrono::steady_clock;
double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

// Prints the time of a continuation. The rate leaves out the first token, whose time includes the prompt.
void report(std::size_t prompt, std::int64_t made, double prompt_seconds, double seconds,
            const Tokenizer& tokenizer) {
  if (isatty(STDOUT_FILENO)) std::fputc('\n', stderr);
  std::fprintf(stderr, "prompt: %s in %.3f s; made: %s",
               counted(static_cast<std::int64_t>(prompt), "token").c_str(), prompt_seconds,
               counted(made, "token").c_str());
  if (made > 1)
    std::fprintf(stderr, ", %.1f tokens/s", static_cast<double>(made - 1) / std::max(seconds, 1e-9));
  std::fprintf(stderr, "; tokenizer %s\n", tokenizer.name());
}

bool somebody_reads(const SampleOptions& options, const TextStream& out) {
  return !out.reader_gone() || !options.json.empty();
}

// One continuation of the generator's prompt.
struct Continuation {
  std::vector<std::int32_t> tokens;
  std::string text;
};

// The token after which nothing is drawn: the one between the documents of the training data.
std::optional<std::int32_t> last_token(const Config& config, const Tokenizer& tokenizer) {
  const bool chosen = tokenizer.name() == std::string("tokenizer.json") && config.data.block == "bos";
  return chosen ? static_cast<std::int32_t>(config.data.bos) : tokenizer.end_of_text();
}

Continuation continue_prompt(const SampleOptions& options, std::uint64_t seed, Generator& generator,
                             const Tokenizer& tokenizer, std::optional<std::int32_t> last, TextStream& out) {
  TokenSampler sampler(rule_of(options), seed);
  const std::size_t prompt = generator.tokens().size();
  const Clock::time_point start = Clock::now();
  Clock::time_point first_token = start;
  Continuation made;
  while (std::ssize(made.tokens) < options.tokens && somebody_reads(options, out)) {
    // The tokenizer does not know ids in the vocabulary's padding. They are never drawn.
    const std::span<const float> logits =
        generator.next_logits().first(static_cast<std::size_t>(tokenizer.vocabulary()));
    const std::int32_t token = sampler.sample(logits, made.tokens.size());
    generator.append(token);
    made.tokens.push_back(token);
    made.text += tokenizer.decode(token);
    out.write(tokenizer.decode(token));
    if (made.tokens.size() == 1) first_token = Clock::now();
    if (token == last) break;
  }
  out.finish();
  if (!out.reader_gone())
    report(prompt, std::ssize(made.tokens), seconds_between(start, first_token),
           seconds_between(first_token, Clock::now()), tokenizer);
  return made;
}

}  // namespace

int run_sample(const SampleOptions& options, Device& device) {
  check_options(options);
  const PromptText text(options.prompt, options.prompt_file);
  const TrainedModel model(options.checkpoint, device, options.precision);
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(options, model);
  const Prompt prompt(text, model.config(), *tokenizer);
  std::string shown;
  for (std::size_t i = prompt.unseen; i < prompt.tokens.size(); ++i)
    shown += tokenizer->decode(prompt.tokens[i]);
  std::fprintf(stderr, "model: %s, step %lld\n", model.checkpoint().c_str(),
               static_cast<long long>(model.step()));
  const std::int64_t given = std::ssize(prompt.tokens);
  require_length(
      model.config(), given + options.tokens,
      "a prompt of " + counted(given, "token") + " and --tokens " + std::to_string(options.tokens));
  Generator generator(model.config(), model.parameters(), device, prompt.tokens, options.tokens,
                      !options.no_cache);

  TextStream out;
  nlohmann::json json = nlohmann::json::array();
  for (std::int64_t i = 0; i < options.samples && somebody_reads(options, out); ++i) {
    const std::int64_t seed = options.seed + i;
    if (options.samples > 1)
      out.write("=== sample " + std::to_string(i + 1) + " of " + std::to_string(options.samples) + ", seed " +
                std::to_string(seed) + "\n");
    out.write(shown);
    generator.restart();
    const Continuation made = continue_prompt(options, static_cast<std::uint64_t>(seed), generator,
                                              *tokenizer, last_token(model.config(), *tokenizer), out);
    if (options.samples > 1) out.write("\n");
    json.push_back(
        {{"sample", i + 1}, {"seed", seed}, {"prompt", shown}, {"text", made.text}, {"tokens", made.tokens}});
  }
  if (!options.json.empty()) write_json(options.json, json);
  return 0;
}

}  // namespace goat
