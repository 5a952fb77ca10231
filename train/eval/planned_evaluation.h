// PlannedEvaluation: the evaluation of one model by one protocol, or of its answers.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "kernels/device.h"
#include "train/run/trained_model.h"

namespace goat {

// It is checked when it is made, before any weights are loaded.
class PlannedEvaluation {
 public:
  virtual ~PlannedEvaluation() = default;

  // The files that run() writes.
  virtual std::vector<std::filesystem::path> files() const { return {}; }
  // Prints a heading and a table, row by row. Returns what the JSON file holds of it.
  virtual nlohmann::json run(const TrainedModel& model, Device& device) const = 0;
};

}  // namespace goat
