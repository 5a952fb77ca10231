// What every evaluation tells of the model first.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kernels/device.h"
#include "train/run/trained_model.h"

namespace goat {

void print_model(const SavedModel& model);
// checkpoint, step, train_length, device, precision, and results: an empty array
nlohmann::json heading_of(const SavedModel& model, const Device& device);
// What progress is told of: "length 512", or "NAME, length 512" if several runs are evaluated.
std::string progress_label(const std::string& name, std::int64_t length);

}  // namespace goat
