// train_gpt_goat: trains GPT models whose attention has a learnable prior.
// Reads top to bottom: config -> device -> data -> model -> loop.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "kernels/cpu/wait_policy.h"
#include "train/checkpoint.h"
#include "train/command_line.h"
#include "train/config.h"
#include "train/dry_run.h"
#include "train/run_folder.h"
#include "train/sources.h"
#include "train/stop_signal.h"
#include "train/trainer.h"
#include "train/training_log.h"

namespace goat {
namespace {

int list_configs() {
  for (const Preset& preset : presets())
    std::printf("%-16s %s\n", preset.name.c_str(), preset.description.c_str());
  return 0;
}

std::filesystem::path run_folder(const TrainOptions& options) {
  if (!options.out.empty()) return options.out;
  const std::filesystem::path config = options.config;
  return config.filename() == "config.toml"
             ? config.parent_path()
             : std::filesystem::path("runs") / config.stem();  // a run's own config: that run
}

std::unique_ptr<Device> open_chosen_device(const std::string& name, std::string& why) {
  try {
    return open_device(name, &why);
  } catch (const std::invalid_argument& error) {
    throw ConfigError(error.what());
  }
}

void check_precision(const Config& config, const Device& device) {
  if (config.model.precision != "bf16") return;
  throw ConfigError(
      device.info().name == "cpu"
          ? "model.precision = \"bf16\": the cpu device computes in fp32; use \"fp32\" or \"auto\""
          : "model.precision = \"bf16\": models train in fp32 so far, on every device; use \"fp32\" or "
            "\"auto\"");
}

bool due(std::int64_t interval, std::int64_t steps_done) {
  return interval > 0 && steps_done % interval == 0;
}

// Saves what `log` has reached. Returns the checkpoint's folder, empty if it could not.
std::filesystem::path save(const RunFolder& run, const Config& config, Device& device, const Trainer& trainer,
                           TrainingLog& log) {
  try {
    const std::filesystem::path checkpoint = save_checkpoint(run.path(), config, log.state(trainer.spikes()),
                                                             DataRecord{}, device, trainer.parameters());
    remove_old_checkpoints(run.path(), config.checkpoint.keep, config.checkpoint.milestone, checkpoint);
    log.saved(checkpoint);
    return checkpoint;
  } catch (const std::exception& error) {
    log.not_saved(error.what());
    return {};
  }
}

// One training step. If its data are bad, what the steps before it have reached is saved first.
StepState step_or_save(Trainer& trainer, const RunFolder& run, const Config& config, Device& device,
                       TrainingLog& log, const std::filesystem::path& checkpoint) {
  try {
    return trainer.step(log.state().step);
  } catch (const DataError&) {
    if (checkpoint.empty() && log.state().step > 0) save(run, config, device, trainer, log);
    throw;
  }
}

int train(const TrainOptions& options, Device& device, const std::string& why) {
  const Config config = load_config(options.config, options.settings);
  check_precision(config, device);

  const std::unique_ptr<TokenSource> training = open_training_source(config);
  const std::unique_ptr<TokenSource> validation = open_validation_source(config);

  Trainer trainer(config, device, *training, validation.get());
  trainer.require_memory();
  RunFolder run(run_folder(options), config,
                options.resume      ? ExistingRun::resume
                : options.overwrite ? ExistingRun::overwrite
                                    : ExistingRun::refuse);
  TrainingLog log(config, device, run);
  log.announce(why, *training, trainer.memory().total_bytes());
  trainer.allocate();
  if (run.resumed())
    trainer.restore(run.resumed()->folder, run.resumed()->manifest.state);
  else
    trainer.initialize();

  watch_stop_signals();
  std::filesystem::path checkpoint;  // of the latest step; empty where that step has none
  if (run.resumed()) checkpoint = run.resumed()->folder;
  bool diverged = false;
  while (log.state().step < config.steps() && !diverged && !stop_signal()) {
    const auto start = std::chrono::steady_clock::now();
    const StepState result = step_or_save(trainer, run, config, device, log, checkpoint);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const std::int64_t done = log.state().step + 1;
    const bool validate = done == config.steps() || due(config.eval.interval, done);
    log.step(done, result, seconds, validate ? trainer.validate() : std::nullopt);
    checkpoint = due(config.checkpoint.interval, done) ? save(run, config, device, trainer, log)
                                                       : std::filesystem::path();
    diverged = result.consecutive_skips >= config.train.max_skips;
  }

  if (checkpoint.empty()) checkpoint = save(run, config, device, trainer, log);
  if (stop_signal() && log.state().step < config.steps())
    return log.stopped(stop_signal(), !checkpoint.empty());
  log.finish(checkpoint, training->bayes_optimal_loss());
  if (diverged) return log.diverged();
  return checkpoint.empty() ? 1 : 0;
}

int run_command(const CommandLine& line) {
  const auto* training = std::get_if<TrainOptions>(&line.command);
  if (training && training->list_configs) return list_configs();
  if (training && training->print_config) {
    std::fputs(to_toml(load_config(training->config, training->settings)).c_str(), stdout);
    return 0;
  }
  std::string why;
  const std::unique_ptr<Device> device = open_chosen_device(line.device, why);
  if (training && training->dry_run) {
    const Config config = load_config(training->config, training->settings);
    check_precision(config, *device);
    dry_run(config);
    return 0;
  }
  if (training) return train(*training, *device, why);
  if (const auto* evaluation = std::get_if<EvalOptions>(&line.command)) return run_eval(*evaluation, *device);
  if (const auto* analysis = std::get_if<AnalyzeOptions>(&line.command))
    return run_analyze(*analysis, *device);
  return run_sample(std::get<SampleOptions>(line.command), *device);
}

}  // namespace
}  // namespace goat

// Exit codes: 0 done, 1 runtime failure, 2 bad usage or config, 3 bad data or checkpoint, 4 stopped by a
// signal after saving.
int main(int argc, char** argv) {
  goat::limit_spinning(argv);
  std::signal(SIGPIPE, SIG_IGN);  // a closed terminal or `| head` must not stop a training run
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an error message like a full disk
  try {
    const auto line = goat::parse_command_line(argc, argv);
    return line ? goat::run_command(*line) : 0;
  } catch (const goat::ConfigError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  } catch (const goat::DataError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 3;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
