#include "train/eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <utility>

#include "train/config/counted.h"
#include "train/eval/heading.h"
#include "train/eval/output_files.h"
#include "train/files/npy.h"
#include "train/model/evaluation.h"
#include "train/speed/slow_work.h"

namespace goat {

namespace {
namespace fs = std::filesystem;

// What there is to evaluate.
struct Extent {
  std::string description;  // of the data, for the user
  // Tokens to predict, or records if each sequence is the start of one. Without end for generated data.
  std::int64_t available = std::numeric_limits<std::int64_t>::max();
};

// How the data are cut.
struct Plan {
  std::string protocol;     // recut or paper
  std::string description;  // of the data, for the user
  std::vector<Cut> cuts;
  bool of_records = false;    // each sequence is the start of a record
  std::int64_t left_out = 0;  // recut: number of tokens at the end that no length uses
  // Number of first tokens that validation during training used. 0 if it used other data.
  std::int64_t validation = 0;
};

// How many of `available` tokens validation during training uses: whole sequences, at least one. 0 if
// there is none.
std::int64_t validation_tokens(const Config& trained, std::int64_t available) {
  const std::int64_t length = trained.data.seq_len;
  if (trained.eval.tokens == 0) return 0;
  return std::min(std::max<std::int64_t>(trained.eval.tokens / length, 1), available / length) * length;
}

Extent extent_of(const Config& trained, const EvaluationData& data,
                 const std::vector<std::int64_t>& lengths) {
  if (data.generated()) return {.description = data.open(lengths.front())->description()};
  const bool of_records = trained.data.block == "crop";
  // Otherwise one sequence per token to predict.
  const auto source = data.open(of_records ? std::ranges::max(lengths) : 1);
  source->finish_check();
  const auto available = static_cast<std::int64_t>(source->sequences());
  const std::string what =
      of_records ? counted(available, "record") + " of " + counted(trained.data.record_tokens, "token")
                 : counted(available, "token") + " to predict";
  return {.description = "shards '" + data.name() + "': " + what, .available = available};
}

void plan_shards(Plan& plan, const EvalOptions& options, const Config& trained,
                 const std::vector<std::int64_t>& lengths, std::int64_t available) {
  if (options.data.empty()) plan.validation = validation_tokens(trained, available);
  if (plan.protocol == "paper") {
    plan.cuts = paper_cuts(lengths, available);
    return;
  }
  plan.cuts = recut(lengths, std::min(options.tokens.value_or(available), available));
  plan.left_out = available - plan.cuts.front().tokens();
}

// Crops of records: sequence s of any length is the start of record s, so that all lengths take the same
// records.
void plan_records(Plan& plan, const EvalOptions& options, const Config& trained,
                  const std::vector<std::int64_t>& lengths, std::int64_t records) {
  plan.of_records = true;
  if (options.data.empty()) plan.validation = validation_tokens(trained, records * trained.data.seq_len);
  const std::int64_t longest = std::ranges::max(lengths);
  const std::int64_t taken = options.tokens ? std::min(records, *options.tokens / longest) : records;
  for (const std::int64_t length : lengths)
    plan.cuts.push_back(plan.protocol == "paper" ? paper_cuts({length}, records * length).front()
                                                 : Cut{length, taken});
}

void plan_generated(Plan& plan, const EvalOptions& options, const Config& trained,
                    const std::vector<std::int64_t>& lengths, std::int64_t available) {
  plan.validation = validation_tokens(trained, available);
  const std::int64_t tokens = plan.validation > 0 ? plan.validation : Config::Eval{}.tokens;
  plan.cuts = plan.protocol == "paper" ? paper_cuts(lengths, available)
                                       : generated_cuts(lengths, options.tokens.value_or(tokens));
}

Plan make_plan(const std::string& protocol, const EvalOptions& options, const Config& trained,
               const EvaluationData& data, const std::vector<std::int64_t>& lengths, const Extent& extent) {
  Plan plan{.protocol = protocol, .description = extent.description, .cuts = {}};
  const auto fill = data.generated()               ? plan_generated
                    : trained.data.block == "crop" ? plan_records
                                                   : plan_shards;
  fill(plan, options, trained, lengths, extent.available);
  return plan;
}

void check_lengths(const EvalOptions& options, const Config& trained,
                   const std::vector<std::int64_t>& lengths) {
  for (const std::int64_t length : lengths) {
    require_length(trained, length, "--lengths " + std::to_string(length));
    if (options.tokens.value_or(length) < length)
      throw ConfigError("--tokens " + std::to_string(*options.tokens) +
                        " is less than one sequence of length " + std::to_string(length));
  }
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

void print_heading(const SavedModel& model, const EvaluationData& data, const Plan& plan) {
  print_model(model);
  std::printf("data      %s\n", plan.description.c_str());
  if (plan.protocol == "paper")
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
  std::printf("%9lld %10lld %12lld %9.4f", static_cast<long long>(row.cut.length),
              static_cast<long long>(row.cut.sequences), static_cast<long long>(row.tokens), row.nll);
  const double perplexity = std::exp(row.nll);
  std::printf(perplexity < 1e6 ? " %11.4f" : " %11.4g", perplexity);
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

nlohmann::json heading_json(const SavedModel& model, const Plan& plan, const Device& device) {
  nlohmann::json json = heading_of(model, device);
  json["data"] = plan.description;
  json["protocol"] = plan.protocol;
  if (plan.protocol == "recut" && !plan.of_records) json["tokens_left_out"] = plan.left_out;
  if (plan.validation > 0) json["validation_tokens"] = plan.validation;
  return json;
}

// See Row::unit. By the data's tokenizer in the run, otherwise by the size of the vocabulary.
std::string unit_of(const SavedModel& model) {
  if (model.config().data.source != "shards") return "";
  const std::string& tokenizer = model.data().tokenizer;
  const std::int64_t vocab = tokenizer.empty() ? model.config().model.vocab : 0;
  if (tokenizer == "bytes" || vocab == 256) return "byte";
  return tokenizer == "dna" || vocab == 5 ? "base" : "";
}

Row row_of(const SavedModel& model, const TokenSource& source, Cut cut, const TokenLosses& losses) {
  return {.cut = cut,
          .tokens = losses.tokens(),
          .nll = losses.nll(),
          .unit = unit_of(model),
          .bayes_optimal = source.bayes_optimal_loss()};
}

TokenLosses measure(const TrainedModel& model, Device& device, TokenSource& source, Cut cut,
                    bool keep_per_token, const std::string& label) {
  SlowWork work(label, "tokens", static_cast<double>(cut.tokens()));
  std::int64_t before = 0;
  return evaluate(
      model.config(), model.parameters(), device, source, cut, keep_per_token, {},
      [&](std::int64_t sequences) {
        work.add(static_cast<double>((sequences - std::exchange(before, sequences)) * cut.length));
      });
}

class PerplexityEvaluation final : public PlannedEvaluation {
 public:
  // `per_token`: a file for the losses of each cut, or none.
  PerplexityEvaluation(EvaluationData data, Plan plan, std::vector<fs::path> per_token, std::string name)
      : data_(std::move(data)),
        plan_(std::move(plan)),
        per_token_(std::move(per_token)),
        name_(std::move(name)) {}

  std::vector<fs::path> files() const override { return per_token_; }

  nlohmann::json run(const TrainedModel& model, Device& device) const override {
    print_heading(model, data_, plan_);
    nlohmann::json json = heading_json(model, plan_, device);
    for (std::size_t i = 0; i < plan_.cuts.size(); ++i) json["results"].push_back(row(model, device, i));
    return json;
  }

 private:
  nlohmann::json row(const TrainedModel& model, Device& device, std::size_t i) const {
    const Cut cut = plan_.cuts[i];
    const std::unique_ptr<TokenSource> source = data_.open(cut.length);
    const TokenLosses losses =
        measure(model, device, *source, cut, !per_token_.empty(), progress_label(name_, cut.length));
    const Row row = row_of(model, *source, cut, losses);
    print_row(row, i == 0);
    nlohmann::json json = to_json(row, losses);
    if (!per_token_.empty()) {
      write_npy(per_token_[i], {cut.sequences, cut.length}, losses.per_token);
      json["per_token"] = per_token_[i].string();
    }
    return json;
  }

  EvaluationData data_;
  Plan plan_;
  std::vector<fs::path> per_token_;
  std::string name_;
};

// The file for each length, or none.
std::vector<fs::path> per_token_files(const EvalOptions& options, const std::string& name,
                                      const std::string& protocol, const std::vector<std::int64_t>& lengths) {
  if (options.per_token.empty()) return {};
  std::vector<std::string> parts;
  if (!name.empty()) parts.push_back(name);
  if (options.protocol == "both") parts.push_back(protocol);
  std::vector<fs::path> files;
  for (const std::int64_t length : lengths) {
    std::vector<std::string> all = parts;
    if (lengths.size() > 1) all.push_back(std::to_string(length));
    files.push_back(per_token_path(options.per_token, all));
  }
  return files;
}
}  // namespace

std::vector<std::unique_ptr<PlannedEvaluation>> plan_perplexities(const EvalOptions& options,
                                                                  const SavedModel& model,
                                                                  const EvaluationData& data,
                                                                  const std::string& name) {
  const Config& trained = model.config();
  const std::vector<std::int64_t> lengths =
      options.lengths.empty() ? std::vector{trained.data.seq_len} : options.lengths;
  check_lengths(options, trained, lengths);
  const Extent extent = extent_of(trained, data, lengths);
  std::vector<std::unique_ptr<PlannedEvaluation>> evaluations;
  for (const std::string protocol : {"recut", "paper"}) {
    const bool wanted =
        options.protocol == "both" || protocol == (options.protocol.empty() ? "recut" : options.protocol);
    if (!wanted) continue;
    evaluations.push_back(std::make_unique<PerplexityEvaluation>(
        data, make_plan(protocol, options, trained, data, lengths, extent),
        per_token_files(options, name, protocol, lengths), name));
  }
  return evaluations;
}

}  // namespace goat
