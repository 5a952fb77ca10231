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

SavedModel::SavedModel(const fs::path& path, const Device& device, const std::string& precision)
    : SavedModel(find_model(path, "--checkpoint"), device, precision) {}

SavedModel::SavedModel(FoundCheckpoint found, const Device& device, const std::string& precision)
    : checkpoint_(std::move(found.folder)),
      run_(run_of(checkpoint_)),
      step_(found.manifest.state.step),
      data_(std::move(found.manifest.data)) {
  try {
    apply_toml(config_, found.manifest.config, (checkpoint_ / "state.json").string() + ": config");
    validate(config_);
  } catch (const ConfigError& error) {
    throw DataError(error.what());
  }
  if (!precision.empty())
    config_.model.precision = precision;
  else if (device.info().name == "cpu")
    config_.model.precision = "auto";
  dtype_ = model_dtype(config_, device);
}

TrainedModel::TrainedModel(SavedModel saved, Device& device)
    : SavedModel(std::move(saved)), parameters_(dtype()) {
  declare_parameters(config(), parameters_);
  parameters_.plan(memory_, false);
  memory_.allocate(device, [] { return "The weights alone do not fit"; });
  parameters_.bind();
  load_model(checkpoint(), device, parameters_);
}

}  // namespace goat
