#include "train/eval/heading.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "train/speed/device_limits.h"

namespace goat {

void print_model(const SavedModel& model) {
  std::printf("model     %s, step %lld, trained at length %lld\n", model.checkpoint().c_str(),
              static_cast<long long>(model.step()), static_cast<long long>(model.config().data.seq_len));
}

nlohmann::json heading_of(const SavedModel& model, const Device& device) {
  const bool is_bf16 = arithmetic_of(model.config(), device) == Arithmetic::bf16;
  return {{"checkpoint", model.checkpoint().string()},   {"step", model.step()},
          {"train_length", model.config().data.seq_len}, {"device", device.info().description},
          {"precision", is_bf16 ? "bf16" : "fp32"},      {"results", nlohmann::json::array()}};
}

std::string progress_label(const std::string& name, std::int64_t length) {
  return (name.empty() ? "" : name + ", ") + "length " + std::to_string(length);
}

}  // namespace goat
