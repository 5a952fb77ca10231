#include "train/eval/retrieval.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/config/counted.h"
#include "train/eval/answer_accuracy.h"
#include "train/eval/heading.h"
#include "train/speed/slow_work.h"

namespace goat {

namespace {
// The published evaluation of a task.
struct Protocol {
  std::vector<std::int64_t> lengths;
  std::vector<double> depths;  // empty: drawn for each sample, as in training
  std::int64_t samples;        // of each length and depth
};

Protocol published(const std::string& task) {
  if (task == "passkey") return {{1024, 2048, 4096, 8192, 16384}, {}, 40};
  return {{512, 1024, 2048, 4096, 8192, 16384}, {0.1, 0.3, 0.5, 0.7, 0.9}, 20};
}

Protocol protocol_of(const EvalOptions& options, const std::string& task) {
  Protocol protocol = published(task);
  if (!options.lengths.empty()) protocol.lengths = options.lengths;
  if (!options.depths.empty()) protocol.depths = options.depths;
  protocol.samples = options.samples.value_or(protocol.samples);
  return protocol;
}

std::string number_text(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", x);
  return text;
}

struct Cell {
  std::int64_t length;
  std::optional<double> depth;
  AnswerAccuracy accuracy;
};

std::vector<std::optional<double>> depths_of(const Protocol& protocol) {
  if (protocol.depths.empty()) return {std::nullopt};
  return {protocol.depths.begin(), protocol.depths.end()};
}

AnswerAccuracy measure(const TrainedModel& model, Device& device, TokenSource& source, Cut cut,
                       const std::string& label) {
  SlowWork work(label, "tokens", static_cast<double>(cut.tokens()));
  std::int64_t before = 0;
  return evaluate_answers(
      model.config(), model.parameters(), device, source, cut, [&](std::int64_t sequences) {
        work.add(static_cast<double>((sequences - std::exchange(before, sequences)) * cut.length));
      });
}

void print_cell(const Cell& cell, bool first) {
  const auto depth = [&](const std::string& text) {
    if (cell.depth) std::printf(" %6s", text.c_str());
  };
  if (first) {
    std::printf("%9s", "length");
    depth("depth");
    std::printf(" %8s %9s %10s %13s %16s\n", "samples", "loss", "whole", "answer tokens", "log-probability");
  }
  std::printf("%9lld", static_cast<long long>(cell.length));
  depth(number_text(cell.depth.value_or(0)));
  const AnswerAccuracy& accuracy = cell.accuracy;
  std::printf(" %8lld %9.4f %9.1f%% %12.1f%% %16.4f\n", static_cast<long long>(accuracy.answers),
              accuracy.losses.nll(), 100 * accuracy.strict(), 100 * accuracy.per_token(),
              accuracy.log_probability());
  std::fflush(stdout);
}

void print_grid(const std::vector<Cell>& cells, std::size_t depths) {
  std::printf("\nanswer tokens that are right, by length and depth\n%9s", "");
  for (std::size_t i = 0; i < depths; ++i)
    std::printf(" %7s", number_text(cells[i].depth.value_or(0)).c_str());
  for (std::size_t first = 0; first < cells.size(); first += depths) {
    std::printf("\n%9lld", static_cast<long long>(cells[first].length));
    for (std::size_t i = first; i < first + depths; ++i)
      std::printf(" %6.1f%%", 100 * cells[i].accuracy.per_token());
  }
  std::printf("\n");
}

nlohmann::json to_json(const Cell& cell) {
  const AnswerAccuracy& accuracy = cell.accuracy;
  nlohmann::json json = {{"length", cell.length},
                         {"samples", accuracy.answers},
                         {"nll", accuracy.losses.nll()},
                         {"strict_accuracy", accuracy.strict()},
                         {"span_token_accuracy", accuracy.per_token()},
                         {"span_log_probability", accuracy.log_probability()}};
  if (cell.depth) json["depth"] = *cell.depth;
  return json;
}

class RetrievalEvaluation final : public PlannedEvaluation {
 public:
  RetrievalEvaluation(EvaluationData data, Protocol protocol, std::int64_t answer_length, std::string name)
      : data_(std::move(data)),
        protocol_(std::move(protocol)),
        answer_length_(answer_length),
        name_(std::move(name)) {}

  nlohmann::json run(const TrainedModel& model, Device& device) const override {
    const std::string& task = model.config().data.source;
    const std::string description = task + ", answers of " + counted(answer_length_, "character") +
                                    ", validation samples, seed " + std::to_string(model.config().train.seed);
    print_model(model);
    std::printf("data      %s\n\n", description.c_str());
    std::fflush(stdout);
    nlohmann::json json = heading_of(model, device);
    json["data"] = description;
    json["task"] = task;
    json["answer_length"] = answer_length_;
    std::vector<Cell> cells;
    const auto depths = depths_of(protocol_);
    for (const std::int64_t length : protocol_.lengths)
      for (const std::optional<double> depth : depths) {
        cells.push_back(measure_cell(model, device, length, depth));
        print_cell(cells.back(), cells.size() == 1);
        json["results"].push_back(to_json(cells.back()));
      }
    if (depths.size() > 1) print_grid(cells, depths.size());
    return json;
  }

 private:
  Cell measure_cell(const TrainedModel& model, Device& device, std::int64_t length,
                    std::optional<double> depth) const {
    const auto source = data_.open(length, depth);
    const std::string label = progress_label(name_, length) + (depth ? ", depth " + number_text(*depth) : "");
    return {length, depth, measure(model, device, *source, {length, protocol_.samples}, label)};
  }

  EvaluationData data_;
  Protocol protocol_;
  std::int64_t answer_length_;
  std::string name_;
};
}  // namespace

std::unique_ptr<PlannedEvaluation> plan_retrieval(const EvalOptions& options, const SavedModel& model,
                                                  const EvaluationData& data, const std::string& name) {
  Protocol protocol = protocol_of(options, model.config().data.source);
  for (const std::int64_t length : protocol.lengths) {
    require_length(
        model.config(), length,
        (options.lengths.empty() ? "the published length " : "--lengths ") + std::to_string(length));
    data.open(length);  // refuses one that is too short
  }
  const std::int64_t answer_length = data.open(protocol.lengths.front())->answer(0).size();
  return std::make_unique<RetrievalEvaluation>(data, std::move(protocol), answer_length, name);
}

}  // namespace goat
