#include "train/training/memory_fit.h"

#include <algorithm>

#include "train/training/training_plan.h"

namespace goat {

namespace {
bool fits(Config config, const Device& device, std::int64_t micro_batch, std::size_t bytes) {
  config.train.micro_batch = micro_batch;
  return TrainingPlan(config, device).memory.total_bytes() <= bytes;
}
}  // namespace

Config with_recompute(Config config, const std::string& recompute) {
  config.model.recompute = recompute;
  if (recompute == "gelu") config.model.epilogue = "own";
  return config;
}

std::int64_t largest_micro_batch(const Config& config, const Device& device, std::size_t bytes) {
  for (std::int64_t size = config.train.batch; size >= 1; --size)
    if (config.train.batch % size == 0 && fits(config, device, size, bytes)) return size;
  return 0;
}

std::size_t usable_memory(const Device& device) {
  const std::size_t available = device.available_memory();
  return device.info().name == "cpu" ? available - available / 4 : usable_of(available);
}

MicroBatchChoice choose_micro_batch(const Config& config, const Device& device, std::int64_t before) {
  if (config.train.micro_batch > 0) return {config, ""};
  const std::size_t bytes = usable_memory(device);
  MicroBatchChoice choice{config, "as before"};
  choice.config.train.micro_batch = before;
  if (before > 0 && config.train.batch % before == 0 && fits(config, device, before, bytes)) return choice;
  choice.config.train.micro_batch = std::max<std::int64_t>(1, largest_micro_batch(config, device, bytes));
  choice.origin = "the largest that fits";
  return choice;
}

// A smaller micro-batch costs less time than recomputing: it is tried first.
std::string setting_that_fits(const Config& config, const Device& device, std::size_t bytes) {
  for (auto setting = std::ranges::find(recompute_settings, config.model.recompute);
       setting != recompute_settings.end(); ++setting) {
    const Config other = with_recompute(config, *setting);
    const std::int64_t micro_batch = largest_micro_batch(other, device, bytes);
    if (micro_batch == 0) continue;
    const auto changed = [](const char* key, const std::string& now, const std::string& was) {
      return now == was ? std::string() : std::string(" --set ") + key + "=" + now;
    };
    return "This fits: --set train.micro_batch=" + std::to_string(micro_batch) +
           changed("model.recompute", other.model.recompute, config.model.recompute) +
           changed("model.epilogue", other.model.epilogue, config.model.epilogue);
  }
  return "No micro-batch fits, even with model.recompute = \"block\"; make the model or data.seq_len smaller";
}

}  // namespace goat
