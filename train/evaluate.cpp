#include "train/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <set>

#include "train/evaluation.h"
#include "train/files.h"
#include "train/npy.h"
#include "train/progress.h"
#include "train/sources.h"
#include "train/trained_model.h"

namespace goat {

namespace {
namespace fs = std::filesystem;

// The data to evaluate on and how they are cut.
struct Plan {
  Config data;              // the run's config with another source and, for each length, another data.seq_len
  std::string description;  // of the data, for people
  std::vector<Cut> cuts;
  std::int64_t left_out = 0;  // recut: tokens at the end that no length sees
};

void check_file(const char* option, const std::string& file) {
  if (file.empty()) return;
  const fs::path folder = fs::path(file).parent_path();
  if (fs::is_directory(file))
    throw ConfigError(std::string(option) + " " + file + ": is a folder; give the name of a file");
  if (!folder.empty() && !fs::is_directory(folder))
    throw ConfigError(std::string(option) + " " + file + ": there is no folder " + folder.string());
}

// What is wrong with the options whatever the model and the data.
void check_options(const EvalOptions& options) {
  constexpr std::int64_t longest = 16'000'000;
  std::set<std::int64_t> seen;
  for (const std::int64_t length : options.lengths) {
    if (length < 1 || length > longest)
      throw ConfigError("--lengths: " + std::to_string(length) +
                        " is not allowed; expected integers from 1 to " + std::to_string(longest));
    if (!seen.insert(length).second)
      throw ConfigError("--lengths: " + std::to_string(length) + " is there twice; give each length once");
  }
  if (options.protocol != "recut" && options.protocol != "paper")
    throw ConfigError("--protocol \"" + options.protocol + "\" is not allowed; expected recut or paper");
  if (options.tokens < 0)
    throw ConfigError("--tokens " + std::to_string(options.tokens) +
                      " is not allowed; expected a positive integer");
  if (options.tokens > 0 && options.protocol == "paper")
    throw ConfigError("--tokens " + std::to_string(options.tokens) +
                      ": --protocol paper fixes how many tokens are used; leave one of them out");
  check_file("--per-token", options.per_token);
  check_file("--json", options.json);
}

Config data_config(const EvalOptions& options, const Config& trained) {
  Config config = trained;
  config.eval.tokens = std::max<std::int64_t>(config.eval.tokens, 1);  // 0 would mean no validation data
  if (options.data.empty()) {
    if (config.data.source == "shards" && config.data.val.empty())
      throw ConfigError("the run has no validation data (data.val is empty); name some with --data GLOB");
    return config;
  }
  if (config.data.source != "shards")
    throw ConfigError("--data " + options.data +
                      ": the model was trained on generated data (data.source = \"" + config.data.source +
                      "\"), and is evaluated on that; leave --data out");
  config.data.val = options.data;
  return config;
}

std::unique_ptr<TokenSource> open_at(const Config& data, std::int64_t length) {
  Config config = data;
  config.data.seq_len = length;
  return open_validation_source(config);
}

void cut_stream(Plan& plan, const EvalOptions& options, const std::vector<std::int64_t>& lengths,
                std::int64_t available) {
  plan.description =
      "shards '" + plan.data.data.val + "': " + std::to_string(available) + " tokens to predict";
  if (options.protocol == "paper") {
    plan.cuts = paper_cuts(lengths, available);
    return;
  }
  plan.cuts = recut(lengths, options.tokens > 0 ? std::min(options.tokens, available) : available);
  plan.left_out = available - plan.cuts.front().tokens();
}

Plan make_plan(const EvalOptions& options, const Config& trained) {
  Plan plan{.data = data_config(options, trained), .description = {}, .cuts = {}};
  const std::vector<std::int64_t> lengths =
      options.lengths.empty() ? std::vector{trained.data.seq_len} : options.lengths;
  for (const std::int64_t length : lengths)
    if (options.tokens > 0 && options.tokens < length)
      throw ConfigError("--tokens " + std::to_string(options.tokens) +
                        " is less than one sequence of length " + std::to_string(length));
  const std::unique_ptr<TokenSource> targets =
      open_at(plan.data, 1);  // as many sequences as there are tokens to predict
  targets->finish_check();
  if (targets->sequences() != TokenSource::endless) {
    cut_stream(plan, options, lengths, static_cast<std::int64_t>(targets->sequences()));
    return plan;
  }
  plan.description = open_at(plan.data, lengths.front())->description();
  const std::int64_t validation = plan.data.eval.tokens;
  plan.cuts = options.protocol == "paper"
                  ? paper_cuts(lengths, std::numeric_limits<std::int64_t>::max())
                  : generated_cuts(lengths, options.tokens > 0 ? options.tokens : validation);
  return plan;
}

// The file itself for one length; NAME_512.npy and so on for several.
fs::path per_token_path(const EvalOptions& options, std::int64_t length, bool several) {
  fs::path path = options.per_token;
  if (several)
    path.replace_filename(path.stem().string() + "_" + std::to_string(length) + path.extension().string());
  return path;
}

// A line on stderr now and then, for lengths that take long.
class SlowProgress {
 public:
  explicit SlowProgress(Cut cut) : cut_(cut) {}
  void operator()(std::int64_t done) {
    const Clock::time_point now = Clock::now();
    if (now - shown_ < std::chrono::seconds(5) || done == cut_.sequences) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double rate = static_cast<double>(done) / seconds;
    std::fprintf(stderr, "length %lld: sequence %lld/%lld  %.0f tokens/s  ETA %s\n",
                 static_cast<long long>(cut_.length), static_cast<long long>(done),
                 static_cast<long long>(cut_.sequences), rate * static_cast<double>(cut_.length),
                 duration_text(static_cast<double>(cut_.sequences - done) / rate).c_str());
  }

 private:
  using Clock = std::chrono::steady_clock;
  Cut cut_;
  Clock::time_point start_ = Clock::now(), shown_ = start_;
};

// One row of the table and of the JSON file.
struct Row {
  Cut cut;
  std::int64_t tokens = 0;
  double nll = 0;
  std::optional<double> bits_per_byte;  // where a token is a byte
  std::optional<double> bayes_optimal;  // where the best possible loss is known
};

void print_heading(const TrainedModel& model, const EvalOptions& options, const Plan& plan) {
  std::printf("model     %s, step %lld, trained at length %lld\n", model.checkpoint().c_str(),
              static_cast<long long>(model.step()), static_cast<long long>(model.config().data.seq_len));
  std::printf("data      %s\n", plan.description.c_str());
  if (options.protocol == "paper")
    std::printf("protocol  paper: 100 sequences up to 8,192 tokens, then as many as keep 819,200 tokens\n\n");
  else if (plan.data.data.source == "shards")
    std::printf("protocol  recut: the same tokens at every length; %lld at the end left out\n\n",
                static_cast<long long>(plan.left_out));
  else
    std::printf("protocol  about as many generated tokens at every length\n\n");
}

void print_row(const Row& row, bool first) {
  if (first)
    std::printf("%9s %10s %12s %9s %11s%s%s\n", "length", "sequences", "tokens", "loss", "perplexity",
                row.bits_per_byte ? "   bits/byte" : "", row.bayes_optimal ? "  optimal loss" : "");
  std::printf("%9lld %10lld %12lld %9.4f %11.4f", static_cast<long long>(row.cut.length),
              static_cast<long long>(row.cut.sequences), static_cast<long long>(row.tokens), row.nll,
              std::exp(row.nll));
  if (row.bits_per_byte) std::printf(" %11.4f", *row.bits_per_byte);
  if (row.bayes_optimal) std::printf(" %13.4f", *row.bayes_optimal);
  std::printf("\n");
  std::fflush(stdout);
}

nlohmann::json to_json(const Row& row, const TokenLosses& losses) {
  nlohmann::json json = {{"length", row.cut.length},
                         {"sequences", row.cut.sequences},
                         {"tokens", row.tokens},
                         {"nll", row.nll},
                         {"perplexity", std::exp(row.nll)}};
  if (row.bits_per_byte) json["bits_per_byte"] = *row.bits_per_byte;
  if (row.bayes_optimal) json["bayes_optimal_loss"] = *row.bayes_optimal;
  for (const CurveBin& bin : losses.curve())
    json["curve"].push_back({{"first", bin.first}, {"end", bin.end}, {"nll", bin.nll}});
  return json;
}

nlohmann::json heading_json(const TrainedModel& model, const EvalOptions& options, const Plan& plan,
                            const Device& device) {
  nlohmann::json json = {{"checkpoint", model.checkpoint().string()},
                         {"step", model.step()},
                         {"train_length", model.config().data.seq_len},
                         {"data", plan.description},
                         {"protocol", options.protocol},
                         {"device", device.info().description},
                         {"results", nlohmann::json::array()}};
  if (options.protocol == "recut") json["tokens_left_out"] = plan.left_out;
  return json;
}

Row row_of(const Config& data, const TokenSource& source, Cut cut, const TokenLosses& losses) {
  Row row{.cut = cut,
          .tokens = losses.tokens(),
          .nll = losses.nll(),
          .bits_per_byte = {},
          .bayes_optimal = source.bayes_optimal_loss()};
  if (data.data.source == "shards" && data.model.vocab == 256)
    row.bits_per_byte = row.nll / std::numbers::ln2;
  return row;
}
}  // namespace

int run_eval(const EvalOptions& options, Device& device) {
  check_options(options);
  const TrainedModel model(options.checkpoint, device);
  const Plan plan = make_plan(options, model.config());
  print_heading(model, options, plan);
  nlohmann::json json = heading_json(model, options, plan, device);
  for (const Cut& cut : plan.cuts) {
    const std::unique_ptr<TokenSource> source = open_at(plan.data, cut.length);
    const TokenLosses losses = evaluate(model.config(), model.parameters(), device, *source, cut,
                                        !options.per_token.empty(), PassLimits{}, SlowProgress(cut));
    const Row row = row_of(plan.data, *source, cut, losses);
    print_row(row, cut == plan.cuts.front());
    json["results"].push_back(to_json(row, losses));
    if (options.per_token.empty()) continue;
    const fs::path path = per_token_path(options, cut.length, plan.cuts.size() > 1);
    write_npy(path, {cut.sequences, cut.length}, losses.per_token);
    json["results"].back()["per_token"] = path.string();
  }
  if (!options.json.empty()) write_file_atomically(options.json, json.dump(2) + "\n");
  return 0;
}

}  // namespace goat
