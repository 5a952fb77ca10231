// `eval` of a model that was trained on a retrieval task (passkey, niah): its answers, by length and depth.
#pragma once

#include "train/eval/evaluate.h"
#include "train/eval/evaluation_data.h"
#include "train/run/trained_model.h"

namespace goat {

// Prints the table and writes options.json. Returns the exit code. Throws ConfigError for options that fit no
// such task.
int run_retrieval_eval(const EvalOptions& options, const TrainedModel& model, const EvaluationData& data,
                       Device& device);

}  // namespace goat
