// SavedModel and TrainedModel: a model opened from a run, for eval, analyze and sample.
#pragma once

#include <filesystem>
#include <string>

#include "train/config/config.h"
#include "train/memory/parameters.h"
#include "train/run/newest_checkpoint.h"

namespace goat {

// What a checkpoint says of its model, without the weights.
class SavedModel {
 public:
  // `path` is one of: a run folder, which means its newest complete checkpoint (newer incomplete ones are
  // reported on stderr); a folder with model.safetensors and state.json (a step_* folder, or one that was
  // passed on); or that model.safetensors. Throws DataError that names the file. `precision`: auto, fp32 or
  // bf16, or empty for the run's own model.precision (on the cpu fp32).
  SavedModel(const std::filesystem::path& path, const Device& device, const std::string& precision);

  const Config& config() const { return config_; }
  // The run's folder, or the checkpoint's own folder if it is not RUN/checkpoints/step_*.
  const std::filesystem::path& run() const { return run_; }
  const std::filesystem::path& checkpoint() const { return checkpoint_; }  // .../checkpoints/step_00000800
  std::int64_t step() const { return step_; }
  const DataRecord& data() const { return data_; }
  DType dtype() const { return dtype_; }  // of activations and matrices

 private:
  SavedModel(FoundCheckpoint found, const Device& device, const std::string& precision);

  std::filesystem::path checkpoint_, run_;
  Config config_;
  std::int64_t step_ = 0;
  DataRecord data_;
  DType dtype_ = DType::f32;
};

// The same with its weights on the device.
class TrainedModel : public SavedModel {
 public:
  // Throws DataError that names the file, tensor and shape that does not fit.
  TrainedModel(SavedModel saved, Device& device);
  TrainedModel(const std::filesystem::path& path, Device& device, const std::string& precision)
      : TrainedModel(SavedModel(path, device, precision), device) {}
  TrainedModel(const TrainedModel&) = delete;

  const ParameterSet& parameters() const { return parameters_; }

 private:
  ParameterSet parameters_;
  MemoryPlan memory_;
};

}  // namespace goat
