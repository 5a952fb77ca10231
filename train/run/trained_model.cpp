#include "train/run/trained_model.h"

#include <cstdio>
#include <utility>

#include "data/data_error.h"
#include "train/model/model_parameters.h"
#include "train/run/checkpoint.h"
#include "train/run/run_folder.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
[[noreturn]] void fail(const fs::path& path, const std::string& what) {
  throw DataError("--checkpoint " + path.string() + ": " + what);
}

fs::path normal(const fs::path& path) {
  fs::path result = fs::absolute(path).lexically_normal();
  return result.has_filename() ? result : result.parent_path();  // without a trailing slash
}

// The newest complete checkpoint of a run.
FoundCheckpoint newest_of(const fs::path& run) {
  auto found = newest_checkpoint(run, Needed::model, [](const std::string& reason) {
    std::fprintf(stderr, "warning: %s\n", reason.c_str());
  });
  if (found) return *found;
  const fs::path replaced = run / replaced_run;
  fail(run, std::string("no complete checkpoint here; expected a run folder with checkpoints/step_*, or a "
                        "folder with model.safetensors and state.json") +
                (fs::exists(replaced) ? "\nThe run that this one replaces is still in " + replaced.string() +
                                            ", until this one has a checkpoint"
                                      : ""));
}

// The verified checkpoint that `path` refers to.
FoundCheckpoint checkpoint_of(const fs::path& path) {
  if (!fs::exists(path)) fail(path, "no such file or folder");
  const bool folder = fs::is_directory(path);
  if (!folder && path.filename() != "model.safetensors")
    fail(path, "expected a run folder, a step_* folder in it, or the model.safetensors there");
  if (folder && !fs::exists(path / "state.json") && !fs::exists(path / "model.safetensors"))
    return newest_of(normal(path));
  const fs::path checkpoint = folder ? normal(path) : normal(path).parent_path();
  return {checkpoint, verify_checkpoint(checkpoint, Needed::model)};
}

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
    if (precision == "bf16" && device.info().name == "cpu")
      throw ConfigError("--precision bf16: the cpu device computes in fp32");
    if (!precision.empty())
      config.model.precision = precision;
    else if (device.info().name == "cpu")
      config.model.precision = "auto";
    dtype = model_dtype(config, device);
  }
};

TrainedModel::TrainedModel(const fs::path& path, Device& device, const std::string& precision)
    : TrainedModel(Opened(checkpoint_of(path), device, precision), device) {}

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
