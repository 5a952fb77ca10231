#include "train/run/trained_model.h"

#include <utility>

#include "data/data_error.h"
#include "train/model/model_parameters.h"
#include "train/run/checkpoint.h"
#include "train/run/find_model.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
// RUN of RUN/checkpoints/step_*, even if reached through a link; otherwise the checkpoint's own folder.
fs::path run_of(const fs::path& checkpoint) {
  for (const fs::path& folder : {checkpoint, fs::canonical(checkpoint)})
    if (folder.parent_path().filename() == "checkpoints") return folder.parent_path().parent_path();
  return checkpoint;
}
}  // namespace

struct TrainedModel::Opened {
  fs::path checkpoint;
  Manifest manifest;
  Config config;
  DType dtype;

  Opened(FoundCheckpoint found, const Device& device, const std::string& precision)
      : checkpoint(std::move(found.folder)), manifest(std::move(found.manifest)) {
    try {
      apply_toml(config, manifest.config, (checkpoint / "state.json").string() + ": config");
      validate(config);
    } catch (const ConfigError& error) {
      throw DataError(error.what());
    }
    if (!precision.empty())
      config.model.precision = precision;
    else if (device.info().name == "cpu")
      config.model.precision = "auto";
    dtype = model_dtype(config, device);
  }
};

TrainedModel::TrainedModel(const fs::path& path, Device& device, const std::string& precision)
    : TrainedModel(Opened(find_model(path, "--checkpoint"), device, precision), device) {}

TrainedModel::TrainedModel(Opened opened, Device& device)
    : checkpoint_(std::move(opened.checkpoint)),
      run_(run_of(checkpoint_)),
      config_(std::move(opened.config)),
      step_(opened.manifest.state.step),
      data_(std::move(opened.manifest.data)),
      parameters_(opened.dtype) {
  declare_parameters(config_, parameters_);
  parameters_.plan(memory_, false);
  memory_.allocate(device, [] { return "The weights alone do not fit"; });
  parameters_.bind();
  load_model(checkpoint_, device, parameters_);
}

}  // namespace goat
