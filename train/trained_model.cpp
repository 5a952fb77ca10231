#include "train/trained_model.h"

#include "data/token_source.h"
#include "train/checkpoint.h"
#include "train/model_parameters.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
// The checkpoint folder that `path` means.
fs::path checkpoint_of(const fs::path& path) {
  if (!fs::exists(path)) throw DataError("--checkpoint " + path.string() + ": no such file or folder");
  if (!fs::is_directory(path) && path.filename() != "model.safetensors")
    throw DataError("--checkpoint " + path.string() +
                    ": expected a run folder, a step_* folder in it, or the model.safetensors there");
  if (!fs::is_directory(path)) return fs::absolute(path).parent_path();
  if (fs::exists(path / "state.json")) return fs::absolute(path / "state.json").parent_path();
  std::string reasons;
  const auto found =
      newest_checkpoint(path, Needed::model, [&](const std::string& reason) { reasons += "\n  " + reason; });
  if (!found)
    throw DataError(
        "--checkpoint " + path.string() +
        ": no complete checkpoint here; expected a run folder with checkpoints/step_*, or a step_* folder" +
        reasons);
  return fs::absolute(found->folder);
}
}  // namespace

TrainedModel::TrainedModel(const fs::path& path, Device& device)
    : checkpoint_(checkpoint_of(path)), run_(checkpoint_.parent_path().parent_path()) {
  const Manifest manifest = verify_checkpoint(checkpoint_, Needed::model);
  step_ = manifest.state.step;
  try {
    apply_toml(config_, manifest.config, (checkpoint_ / "state.json").string() + ": config");
    validate(config_);
  } catch (const ConfigError& error) {
    throw DataError(error.what());
  }
  declare_parameters(config_, parameters_);
  parameters_.plan(memory_, false);
  memory_.allocate(device, "The weights alone do not fit");
  parameters_.bind();
  load_model(checkpoint_, device, parameters_);
}

}  // namespace goat
