#include "train/eval/evaluate.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "train/eval/comparison.h"
#include "train/eval/evaluation_data.h"
#include "train/eval/output_files.h"
#include "train/eval/perplexity.h"
#include "train/eval/planned_evaluation.h"
#include "train/eval/retrieval.h"
#include "train/eval/run_names.h"
#include "train/files/json_file.h"
#include "train/run/trained_model.h"

namespace goat {

namespace {
namespace fs = std::filesystem;

template <class Number>
void require_distinct(const char* option, const char* noun, const std::vector<Number>& numbers) {
  std::set<Number> seen;
  for (const Number number : numbers)
    if (!seen.insert(number).second)
      throw ConfigError(std::string(option) + ": " + nlohmann::json(number).dump() +
                        " is there twice; give each " + noun + " once");
}

// Checks the options that do not depend on the models and the data. The command line has checked each number.
void check_options(const EvalOptions& options) {
  require_distinct("--lengths", "length", options.lengths);
  require_distinct("--depths", "depth", options.depths);
  if (const std::set<std::string> allowed{"", "recut", "paper", "both"}; !allowed.contains(options.protocol))
    throw ConfigError("--protocol \"" + options.protocol +
                      "\" is not allowed; expected recut, paper or both");
  if (options.tokens && options.protocol == "paper")
    throw ConfigError("--tokens " + std::to_string(*options.tokens) +
                      ": --protocol paper fixes how many tokens are used; leave one of them out");
  check_json_file(options);
}

std::vector<SavedModel> open_models(const EvalOptions& options, const Device& device) {
  std::vector<SavedModel> models;
  for (const std::string& path : options.checkpoints) {
    SavedModel& model = models.emplace_back(path, device, options.precision);
    for (std::size_t i = 0; i + 1 < models.size(); ++i)
      if (fs::equivalent(models[i].checkpoint(), model.checkpoint()))
        throw ConfigError("--checkpoint: " + options.checkpoints[i] + " and " + path +
                          " are the same checkpoint, " + model.checkpoint().string() + "; give each once");
  }
  return models;
}

// What `make` returns for the model of a run. If there are several, its errors name the run.
template <class Make>
auto for_run(const EvalOptions& options, std::size_t i, Make make) {
  const std::string where =
      options.checkpoints.size() > 1 ? "--checkpoint " + options.checkpoints[i] + ": " : "";
  try {
    return make();
  } catch (const ConfigError& error) {
    throw ConfigError(where + error.what());
  } catch (const DataError& error) {
    throw DataError(where + error.what());
  }
}

// The data of each model. --data is for those that were trained on shards, and refused if none was.
std::vector<EvaluationData> open_data(const EvalOptions& options, const std::vector<SavedModel>& models) {
  const auto reads_shards = [](const SavedModel& model) { return model.config().data.source == "shards"; };
  const bool none = std::ranges::none_of(models, reads_shards);
  std::vector<EvaluationData> data;
  for (std::size_t i = 0; i < models.size(); ++i)
    data.push_back(for_run(options, i, [&] {
      const bool fits = none || reads_shards(models[i]);
      EvaluationData opened(models[i], fits ? options.data : std::vector<std::string>{});
      if (opened.none())
        throw ConfigError("the run has no validation data (data.val is empty); name some with --data GLOB");
      return opened;
    }));
  return data;
}

// Refuses options that fit none of the runs.
void check_use(const EvalOptions& options, const std::vector<EvaluationData>& data,
               const std::vector<SavedModel>& models) {
  const auto answers = std::ranges::count_if(data, &EvaluationData::has_answers);
  const auto refuse = [](const char* option, bool given, const std::string& why) {
    if (given) throw ConfigError(option + why);
  };
  if (answers == std::ssize(data)) {
    const std::string why =
        " is not for a run of a retrieval task, whose answers are counted; take --lengths, --depths and "
        "--samples";
    refuse("--tokens", options.tokens.has_value(), why);
    refuse("--protocol", !options.protocol.empty(), why);
    refuse("--per-token", !options.per_token.empty(), why);
  }
  if (answers == 0) {
    const std::string why = " is for runs of passkey and niah; " +
                            std::string(models.size() > 1 ? "the first" : "this") +
                            " one has data.source = \"" + models.front().config().data.source + "\"";
    refuse("--samples", options.samples.has_value(), why);
    refuse("--depths", !options.depths.empty(), why);
  }
}

// One run with all its evaluations.
struct EvaluatedRun {
  SavedModel model;
  std::string name;
  std::vector<std::unique_ptr<PlannedEvaluation>> evaluations;
};

std::vector<EvaluatedRun> plan_runs(const EvalOptions& options, const std::vector<SavedModel>& models,
                                    const std::vector<EvaluationData>& data) {
  const std::vector<std::string> names = names_of(models);
  std::vector<EvaluatedRun> runs;
  for (std::size_t i = 0; i < models.size(); ++i) {
    const std::string name = models.size() > 1 ? names[i] : "";
    std::vector<std::unique_ptr<PlannedEvaluation>> evaluations = for_run(options, i, [&] {
      if (!data[i].has_answers()) return plan_perplexities(options, models[i], data[i], name);
      std::vector<std::unique_ptr<PlannedEvaluation>> one;
      one.push_back(plan_retrieval(options, models[i], data[i], name));
      return one;
    });
    runs.push_back({models[i], names[i], std::move(evaluations)});
  }
  return runs;
}

std::vector<fs::path> files_of(const std::vector<EvaluatedRun>& runs) {
  std::vector<fs::path> files;
  for (const EvaluatedRun& run : runs)
    for (const auto& evaluation : run.evaluations)
      for (const fs::path& file : evaluation->files()) files.push_back(file);
  return files;
}
std::size_t planned_in(const std::vector<EvaluatedRun>& runs) {
  std::size_t count = 0;
  for (const EvaluatedRun& run : runs) count += run.evaluations.size();
  return count;
}

// Writes --json after each evaluation, so that what is finished stays if a later one fails. A pipe or device
// gets it once, at the end.
void save(const EvalOptions& options, const std::vector<nlohmann::json>& evaluations, std::size_t planned) {
  if (options.json.empty()) return;
  if (evaluations.size() < planned && is_device_or_folder(options.json)) return;
  nlohmann::json json = planned > 1 ? nlohmann::json{{"evaluations", evaluations}} : evaluations.front();
  json["arguments"] = options.arguments;
  write_json(options.json, json);
}

void evaluate_run(const EvalOptions& options, const EvaluatedRun& run, Device& device, std::size_t planned,
                  std::vector<nlohmann::json>& evaluations) {
  const TrainedModel model(run.model, device);
  for (const auto& evaluation : run.evaluations) {
    if (!evaluations.empty()) std::printf("\n");
    evaluations.push_back(evaluation->run(model, device));
    save(options, evaluations, planned);
  }
}

// If there are several runs, says which of them an error ends, and what is in --json by then.
void note_failure(const EvalOptions& options, std::size_t i, std::size_t finished) {
  if (options.checkpoints.size() == 1) return;
  std::fflush(stdout);
  std::fprintf(stderr, "note: --checkpoint %s was not evaluated to its end", options.checkpoints[i].c_str());
  if (finished > 0 && !options.json.empty() && !is_device_or_folder(options.json))
    std::fprintf(stderr, "; %s holds what was finished before", options.json.c_str());
  std::fprintf(stderr, "\n");
}
}  // namespace

int run_eval(const EvalOptions& options, Device& device) {
  check_options(options);
  const std::vector<SavedModel> models = open_models(options, device);
  const std::vector<EvaluationData> data = open_data(options, models);
  check_use(options, data, models);
  const std::vector<EvaluatedRun> runs = plan_runs(options, models, data);
  check_per_token_files(options, files_of(runs));

  std::vector<std::string> names;
  std::vector<nlohmann::json> evaluations;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    try {
      evaluate_run(options, runs[i], device, planned_in(runs), evaluations);
    } catch (const std::exception&) {
      note_failure(options, i, evaluations.size());
      throw;
    }
    names.resize(evaluations.size(), runs[i].name);
  }
  if (evaluations.size() > 1) std::printf("\n%s", comparison_text(names, evaluations).c_str());
  return 0;
}

}  // namespace goat
