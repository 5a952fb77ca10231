#include "train/eval/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <set>
#include <utility>

#include "train/config/counted.h"
#include "train/eval/evaluation_data.h"
#include "train/eval/heading.h"
#include "train/eval/retrieval.h"
#include "train/files/files.h"
#include "train/files/json_file.h"
#include "train/files/npy.h"
#include "train/model/evaluation.h"
#include "train/run/trained_model.h"
#include "train/speed/slow_work.h"

namespace goat {

namespace {
namespace fs = std::filesystem;

// How the data are cut.
struct Plan {
  std::string description;  // of the data, for the user
  std::vector<Cut> cuts;
  bool of_records = false;    // each sequence is the start of a record
  std::int64_t left_out = 0;  // recut: number of tokens at the end that no length uses
  // Number of first tokens that validation during training used. 0 if it used other data.
  std::int64_t validation = 0;
};

// The --per-token file itself if there is one length; NAME_512.npy etc. if there are several.
fs::path per_token_path(const EvalOptions& options, std::int64_t length) {
  fs::path path = options.per_token;
  if (options.lengths.size() > 1)
    path.replace_filename(path.stem().string() + "_" + std::to_string(length) + path.extension().string());
  return path;
}

bool is_device_or_folder(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error) && !fs::is_regular_file(path, error);
}

void check_file(const char* option, const fs::path& file) {
  if (const std::string reason = why_not_writable(file); !reason.empty())
    throw ConfigError(std::string(option) + " " + file.string() + ": " + reason);
}

void check_files(const EvalOptions& options) {
  if (!options.json.empty()) check_file("--json", options.json);
  if (options.per_token.empty()) return;
  if (options.lengths.size() > 1 && is_device_or_folder(options.per_token))
    throw ConfigError("--per-token " + options.per_token +
                      ": is not a file; several lengths are written to a file each, NAME_LENGTH.npy");
  for (const std::int64_t length : options.lengths.empty() ? std::vector<std::int64_t>{0} : options.lengths) {
    const fs::path file = per_token_path(options, length);
    check_file("--per-token", file);
    if (file == options.json && !is_device_or_folder(file))
      throw ConfigError("--json and --per-token are to be written to the same file, " + options.json);
  }
}

template <class Number>
void require_distinct(const char* option, const char* noun, const std::vector<Number>& numbers) {
  std::set<Number> seen;
  for (const Number number : numbers)
    if (!seen.insert(number).second)
      throw ConfigError(std::string(option) + ": " + nlohmann::json(number).dump() +
                        " is there twice; give each " + noun + " once");
}

// Checks the options that do not depend on the model and the data. The command line has checked each number.
void check_options(const EvalOptions& options) {
  require_distinct("--lengths", "length", options.lengths);
  require_distinct("--depths", "depth", options.depths);
  if (options.protocol != "recut" && options.protocol != "paper")
    throw ConfigError("--protocol \"" + options.protocol + "\" is not allowed; expected recut or paper");
  if (options.tokens && options.protocol == "paper")
    throw ConfigError("--tokens " + std::to_string(*options.tokens) +
                      ": --protocol paper fixes how many tokens are used; leave one of them out");
  check_files(options);
}

// How many of `available` tokens validation during training uses: whole sequences, at least one. 0 if
// there is none.
std::int64_t validation_tokens(const Config& trained, std::int64_t available) {
  const std::int64_t length = trained.data.seq_len;
  if (trained.eval.tokens == 0) return 0;
  return std::min(std::max<std::int64_t>(trained.eval.tokens / length, 1), available / length) * length;
}

Plan shard_plan(const EvalOptions& options, const Config& trained, const std::string& name,
                const std::vector<std::int64_t>& lengths, std::int64_t available) {
  Plan plan{.description = "shards '" + name + "': " + counted(available, "token") + " to predict",
            .cuts = {}};
  if (options.data.empty()) plan.validation = validation_tokens(trained, available);
  if (options.protocol == "paper") {
    plan.cuts = paper_cuts(lengths, available);
    return plan;
  }
  plan.cuts = recut(lengths, std::min(options.tokens.value_or(available), available));
  plan.left_out = available - plan.cuts.front().tokens();
  return plan;
}

// Crops of records: sequence s of any length is the start of record s, so that all lengths take the same
// records.
Plan record_plan(const EvalOptions& options, const Config& trained, const std::string& name,
                 const std::vector<std::int64_t>& lengths, std::int64_t records) {
  Plan plan{.description = "shards '" + name + "': " + counted(records, "record") + " of " +
                           counted(trained.data.record_tokens, "token"),
            .cuts = {},
            .of_records = true};
  const std::int64_t available = records * trained.data.seq_len;
  plan.validation = options.data.empty() ? validation_tokens(trained, available) : 0;
  const std::int64_t longest = std::ranges::max(lengths);
  const std::int64_t taken = options.tokens ? std::min(records, *options.tokens / longest) : records;
  for (const std::int64_t length : lengths)
    plan.cuts.push_back(options.protocol == "paper" ? paper_cuts({length}, records * length).front()
                                                    : Cut{length, taken});
  return plan;
}

Plan generated_plan(const EvalOptions& options, const Config& trained, const std::string& description,
                    const std::vector<std::int64_t>& lengths) {
  constexpr std::int64_t endless = std::numeric_limits<std::int64_t>::max();
  const std::int64_t validation = validation_tokens(trained, endless),
                     tokens = validation > 0 ? validation : Config::Eval{}.tokens;
  return {.description = description,
          .cuts = options.protocol == "paper" ? paper_cuts(lengths, endless)
                                              : generated_cuts(lengths, options.tokens.value_or(tokens)),
          .validation = validation};
}

Plan make_plan(const EvalOptions& options, const Config& trained, const EvaluationData& data) {
  const std::vector<std::int64_t> lengths =
      options.lengths.empty() ? std::vector{trained.data.seq_len} : options.lengths;
  for (const std::int64_t length : lengths) {
    require_length(trained, length, "--lengths " + std::to_string(length));
    if (options.tokens.value_or(length) < length)
      throw ConfigError("--tokens " + std::to_string(*options.tokens) +
                        " is less than one sequence of length " + std::to_string(length));
  }
  if (data.generated())
    return generated_plan(options, trained, data.open(lengths.front())->description(), lengths);
  if (trained.data.block == "crop") {
    const auto records = data.open(std::ranges::max(lengths));
    records->finish_check();
    return record_plan(options, trained, data.name(), lengths,
                       static_cast<std::int64_t>(records->sequences()));
  }
  const auto targets = data.open(1);  // one sequence per token to predict
  targets->finish_check();
  return shard_plan(options, trained, data.name(), lengths, static_cast<std::int64_t>(targets->sequences()));
}

// One row of the table and of the JSON file.
struct Row {
  Cut cut;
  std::int64_t tokens = 0;
  double nll = 0;
  std::string unit;                     // what a token is: "byte", "base" of a genome; empty: neither
  std::optional<double> bayes_optimal;  // only if the best possible loss is known
};

// Prints which options give the loss of validation during training, unless these lengths include it.
void print_validation(const Plan& plan, std::int64_t length) {
  if (plan.validation == 0 || std::ranges::count(plan.cuts, Cut{length, plan.validation / length}) > 0)
    return;
  const auto tokens = static_cast<long long>(plan.validation);
  std::printf("          validation during training used the first %lld tokens: ", tokens);
  std::printf("--lengths %lld --tokens %lld gives the same loss\n", static_cast<long long>(length), tokens);
}

void print_heading(const TrainedModel& model, const EvalOptions& options, const EvaluationData& data,
                   const Plan& plan) {
  print_model(model);
  std::printf("data      %s\n", plan.description.c_str());
  if (options.protocol == "paper")
    std::printf("protocol  paper: 100 sequences up to 8,192 tokens, then as many as keep 819,200 tokens\n");
  else if (plan.of_records)
    std::printf("protocol  the start of each record: the same records at every length\n");
  else if (!data.generated())
    std::printf("protocol  recut: the same tokens at every length; %lld at the end left out\n",
                static_cast<long long>(plan.left_out));
  else
    std::printf("protocol  about as many generated tokens at every length\n");
  print_validation(plan, model.config().data.seq_len);
  std::printf("\n");
  std::fflush(stdout);
}

void print_row(const Row& row, bool first) {
  if (first)
    std::printf("%9s %10s %12s %9s %11s%s%s\n", "length", "sequences", "tokens", "loss", "perplexity",
                row.unit.empty() ? "" : ("   bits/" + row.unit).c_str(),
                row.bayes_optimal ? "  optimal loss" : "");
  std::printf("%9lld %10lld %12lld %9.4f %11.4f", static_cast<long long>(row.cut.length),
              static_cast<long long>(row.cut.sequences), static_cast<long long>(row.tokens), row.nll,
              std::exp(row.nll));
  if (!row.unit.empty()) std::printf(" %11.4f", row.nll / std::numbers::ln2);
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
  if (!row.unit.empty()) json["bits_per_" + row.unit] = row.nll / std::numbers::ln2;
  if (row.bayes_optimal) json["bayes_optimal_loss"] = *row.bayes_optimal;
  for (const CurveBin& bin : losses.curve())
    json["curve"].push_back({{"first", bin.first}, {"end", bin.end}, {"nll", bin.nll}});
  return json;
}

nlohmann::json heading_json(const TrainedModel& model, const EvalOptions& options, const Plan& plan,
                            const Device& device) {
  nlohmann::json json = heading_of(model, device);
  json["data"] = plan.description;
  json["protocol"] = options.protocol;
  if (options.protocol == "recut" && !plan.of_records) json["tokens_left_out"] = plan.left_out;
  if (plan.validation > 0) json["validation_tokens"] = plan.validation;
  return json;
}

// See Row::unit. By the data's tokenizer in the run, otherwise by the size of the vocabulary.
std::string unit_of(const TrainedModel& model) {
  if (model.config().data.source != "shards") return "";
  const std::string& tokenizer = model.data().tokenizer;
  const std::int64_t vocab = tokenizer.empty() ? model.config().model.vocab : 0;
  if (tokenizer == "bytes" || vocab == 256) return "byte";
  return tokenizer == "dna" || vocab == 5 ? "base" : "";
}

Row row_of(const TrainedModel& model, const TokenSource& source, Cut cut, const TokenLosses& losses) {
  return {.cut = cut,
          .tokens = losses.tokens(),
          .nll = losses.nll(),
          .unit = unit_of(model),
          .bayes_optimal = source.bayes_optimal_loss()};
}

TokenLosses measure(const TrainedModel& model, Device& device, TokenSource& source, Cut cut,
                    bool keep_per_token) {
  SlowWork work("length " + std::to_string(cut.length), "tokens", static_cast<double>(cut.tokens()));
  std::int64_t before = 0;
  return evaluate(
      model.config(), model.parameters(), device, source, cut, keep_per_token, {},
      [&](std::int64_t sequences) {
        work.add(static_cast<double>((sequences - std::exchange(before, sequences)) * cut.length));
      });
}
}  // namespace

int run_eval(const EvalOptions& options, Device& device) {
  check_options(options);
  const TrainedModel model(options.checkpoint, device, options.precision);
  const EvaluationData data(model, options.data);
  if (data.none())
    throw ConfigError("the run has no validation data (data.val is empty); name some with --data GLOB");
  if (data.has_answers()) return run_retrieval_eval(options, model, data, device);
  if (options.samples || !options.depths.empty())
    throw ConfigError(std::string(options.samples ? "--samples" : "--depths") +
                      " is for runs of passkey and niah; this one has data.source = \"" +
                      model.config().data.source + "\"");
  const Plan plan = make_plan(options, model.config(), data);
  print_heading(model, options, data, plan);
  nlohmann::json json = heading_json(model, options, plan, device);
  for (const Cut& cut : plan.cuts) {
    const std::unique_ptr<TokenSource> source = data.open(cut.length);
    const TokenLosses losses = measure(model, device, *source, cut, !options.per_token.empty());
    const Row row = row_of(model, *source, cut, losses);
    print_row(row, cut == plan.cuts.front());
    json["results"].push_back(to_json(row, losses));
    if (options.per_token.empty()) continue;
    const fs::path path = per_token_path(options, cut.length);
    write_npy(path, {cut.sequences, cut.length}, losses.per_token);
    json["results"].back()["per_token"] = path.string();
  }
  if (!options.json.empty()) write_json(options.json, json);
  return 0;
}

}  // namespace goat
