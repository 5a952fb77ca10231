// train_gpt_goat: trains GPT models whose attention has a learnable prior.
// Reads top to bottom: config -> device -> data -> model -> loop.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "train/command_line.h"
#include "train/config.h"
#include "train/run_folder.h"
#include "train/sources.h"
#include "train/trainer.h"
#include "train/training_log.h"

namespace goat {
namespace {

void list_configs() {
  for (const Preset& preset : presets()) std::printf("%-16s %s\n", preset.name.c_str(), preset.description.c_str());
}

std::string run_folder(const CommandLine& options) {
  return options.out.empty() ? "runs/" + std::filesystem::path(options.config).stem().string() : options.out;
}

std::unique_ptr<Device> open_device_for(const Config& config, const std::string& name, std::string& why) {
  std::unique_ptr<Device> device = open_device(name, &why);
  if (device->info().name == "cpu" && config.model.precision == "bf16")
    throw ConfigError("model.precision = \"bf16\": the cpu device computes in fp32; use \"fp32\" or \"auto\"");
  return device;
}

bool validation_due(const Config& config, std::int64_t steps_done) {
  return steps_done == config.steps() || (config.eval.interval > 0 && steps_done % config.eval.interval == 0);
}

int train(const CommandLine& options) {
  const Config config = load_config(options.config, options.settings);

  std::string why;
  const std::unique_ptr<Device> device = open_device_for(config, options.device, why);

  const std::unique_ptr<TokenSource> training = open_training_source(config);
  const std::unique_ptr<TokenSource> validation = open_validation_source(config);

  RunFolder run(run_folder(options), config, options.overwrite);
  Trainer trainer(config, *device, *training, validation.get());
  TrainingLog log(config, *device, run);
  log.announce(why, *training, trainer.memory().total_bytes());

  bool diverged = false;
  std::int64_t steps_done = 0;
  while (steps_done < config.steps() && !diverged) {
    const auto start = std::chrono::steady_clock::now();
    const StepState result = trainer.step(steps_done++);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    log.step(steps_done, result, seconds, validation_due(config, steps_done) ? trainer.validate() : std::nullopt);
    diverged = result.consecutive_skips >= config.train.max_skips;
  }

  const std::filesystem::path checkpoint = run.save_model(*device, trainer.parameters(), steps_done);
  log.finish(checkpoint, training->bayes_optimal_loss());
  if (!diverged) return 0;
  std::fprintf(stderr, "error: the last %lld updates were not finite; stopped. The model saved is the one before them. Lower train.lr or look at the data.\n",
               static_cast<long long>(config.train.max_skips));
  return 1;
}

int run(int argc, char** argv) {
  const std::optional<CommandLine> options = parse_command_line(argc, argv);
  if (!options) return 0;
  if (options->list_configs) {
    list_configs();
    return 0;
  }
  if (options->print_config) {
    std::fputs(to_toml(load_config(options->config, options->settings)).c_str(), stdout);
    return 0;
  }
  return train(*options);
}

}  // namespace
}  // namespace goat

// Exit codes: 0 done, 1 runtime failure, 2 bad usage or config, 3 bad data or checkpoint.
int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);   // a closed terminal or `| head` must not stop a training run
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an error message like a full disk
  try {
    return goat::run(argc, argv);
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
