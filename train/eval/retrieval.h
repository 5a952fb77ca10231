// `eval` of a model that was trained on a retrieval task (passkey, niah): its answers, by length and depth.
#pragma once

#include <memory>
#include <string>

#include "train/eval/evaluate.h"
#include "train/eval/evaluation_data.h"
#include "train/eval/planned_evaluation.h"
#include "train/run/trained_model.h"

namespace goat {

// `data` are those of a task. `name` tells the run from the others of the command; empty if it is the only
// one. Throws ConfigError for a length that the task or the model cannot have.
std::unique_ptr<PlannedEvaluation> plan_retrieval(const EvalOptions& options, const SavedModel& model,
                                                  const EvaluationData& data, const std::string& name);

}  // namespace goat
