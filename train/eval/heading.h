// What every evaluation tells of the model first.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "kernels/device.h"
#include "train/run/trained_model.h"

namespace goat {

void print_model(const TrainedModel& model);
// checkpoint, step, train_length, device, and results: an empty array
nlohmann::json heading_of(const TrainedModel& model, const Device& device);

}  // namespace goat
