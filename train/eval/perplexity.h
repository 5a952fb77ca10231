// `eval` of a model that was trained on text or copies: its perplexity by length.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/eval/evaluate.h"
#include "train/eval/evaluation_data.h"
#include "train/eval/planned_evaluation.h"
#include "train/run/trained_model.h"

namespace goat {

// An evaluation for each protocol of `options`. `name` tells the run from the others of the command; empty if
// it is the only one. Throws ConfigError or DataError for what cannot be evaluated.
std::vector<std::unique_ptr<PlannedEvaluation>> plan_perplexities(const EvalOptions& options,
                                                                  const SavedModel& model,
                                                                  const EvaluationData& data,
                                                                  const std::string& name);

}  // namespace goat
