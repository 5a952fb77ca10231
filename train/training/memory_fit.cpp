#include "train/training/memory_fit.h"

#include <algorithm>
#include <array>
#include <vector>

#include "train/training/training_plan.h"

namespace goat {

namespace {
bool fits(Config config, const Device& device, std::int64_t micro_batch, std::size_t bytes) {
  config.train.micro_batch = micro_batch;
  return TrainingPlan(config, device).memory.total_bytes() <= bytes;
}

std::vector<std::int64_t> divisors_of(std::int64_t number) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t divisor = 1; divisor <= number; ++divisor)
    if (number % divisor == 0) divisors.push_back(divisor);
  return divisors;
}
}  // namespace

std::int64_t largest_micro_batch(Config config, const Device& device, std::size_t bytes) {
  const std::vector<std::int64_t> divisors = divisors_of(config.train.batch);
  const auto too_large = std::ranges::partition_point(
      divisors, [&](std::int64_t divisor) { return fits(config, device, divisor, bytes); });
  return too_large == divisors.begin() ? 0 : *(too_large - 1);
}

std::size_t usable_memory(const Device& device) {
  const std::size_t available = device.available_memory();
  return available - available / 32;
}

Config with_micro_batch(Config config, const Device& device, std::int64_t before) {
  if (config.train.micro_batch > 0) return config;
  const std::size_t bytes = usable_memory(device);
  const bool keep = before > 0 && config.train.batch % before == 0 && fits(config, device, before, bytes);
  config.train.micro_batch =
      keep ? before : std::max<std::int64_t>(1, largest_micro_batch(config, device, bytes));
  return config;
}

// A smaller micro-batch costs less time than recomputing: it is tried first.
std::string setting_that_fits(const Config& config, const Device& device, std::size_t bytes) {
  constexpr std::array settings = {"none", "gelu", "block"};  // each needs less memory than the one before
  for (auto setting = std::ranges::find(settings, config.model.recompute); setting != settings.end();
       ++setting) {
    Config other = config;
    other.model.recompute = *setting;
    if (other.model.recompute == "gelu") other.model.epilogue = "own";  // they exclude each other
    const std::int64_t micro_batch = largest_micro_batch(other, device, bytes);
    if (micro_batch == 0) continue;
    const bool same = other.model.recompute == config.model.recompute;
    return "This fits: --set train.micro_batch=" + std::to_string(micro_batch) +
           (same ? "" : " --set model.recompute=" + other.model.recompute) +
           (other.model.epilogue == config.model.epilogue ? "" : " --set model.epilogue=own");
  }
  return "No micro-batch fits, even with model.recompute = \"block\"; make the model or data.seq_len smaller";
}

}  // namespace goat
