// train_gpt_goat: trains GPT models whose attention has a learnable prior.
// Reads top to bottom: config -> ranks -> device -> data -> model -> loop.

#include <csignal>
#include <cstdio>
#include <filesystem>

#include "kernels/cpu/subnormals.h"
#include "kernels/cpu/wait_policy.h"
#include "kernels/open/open_device.h"
#include "train/commands/command_line.h"
#include "train/commands/dry_run.h"
#include "train/commands/run_config.h"
#include "train/commands/start_ranks.h"
#include "train/config/config.h"
#include "train/files/standard_output.h"
#include "train/model/model_parameters.h"
#include "train/profile/profile.h"
#include "train/replicas/on_all_ranks.h"
#include "train/run/checkpoint.h"
#include "train/run/find_model.h"
#include "train/run/initial_weights.h"
#include "train/run/resume.h"
#include "train/run/run_folder.h"
#include "train/run/shared_run.h"
#include "train/training/sources.h"
#include "train/training/stop_signal.h"
#include "train/training/trainer.h"
#include "train/training/training_log.h"
#include "train/training/training_loop.h"

namespace goat {
namespace {

int list_configs() {
  for (const Preset& preset : presets())
    std::printf("%-16s %s\n", preset.name.c_str(), preset.description.c_str());
  return 0;
}

void print_note(const std::string& note) { std::fprintf(stderr, "note: %s\n", note.c_str()); }
void no_notes(const std::string&) {}

std::unique_ptr<Device> open_chosen_device(const std::string& name, std::string& why,
                                           const DevicePlace& place = {}) {
  try {
    std::unique_ptr<Device> device = open_device(name, &why, place);
    if (device->info().name == "cpu") flush_subnormals();
    return device;
  } catch (const std::invalid_argument& error) {
    throw ConfigError(error.what());
  }
}

// What the device makes of the keys about arithmetic.
void check_arithmetic(const Config& config, const Device& device) {
  const bool cpu = device.info().name == "cpu";
  if (config.train.cuda_graph == "on" && !device.can_capture())
    throw ConfigError("train.cuda_graph = \"on\": the " + device.info().name +
                      " device cannot record its work; use \"auto\" or \"off\"");
  const bool f32 = model_dtype(config, device) == DType::f32;
  if (f32 && config.train.rounding != "nearest")
    print_note("train.rounding has no effect in fp32, where no weight is rounded");
  if (cpu && config.model.tf32 != "none")
    print_note("model.tf32 has no effect on the cpu device, which has no TF32");
  if (!f32 && config.model.tf32 != "none")
    print_note("model.tf32 has no effect on a bf16 model, whose matrix products read bf16");
  if (cpu && config.model.epilogue != "own")
    print_note("model.epilogue has no effect on the cpu device, which has no such products");
  if (config.model.block != "gpt" && config.model.epilogue != "own")
    print_note("model.epilogue has no effect on llama blocks, which have no GELU");
  if (cpu && !config.train.deterministic)
    print_note("train.deterministic = false has no effect on the cpu device, which always is");
}

// Whether the run has all its steps already. Nothing is touched then.
bool nothing_to_do(const Config& config, const SharedRun& run) {
  const std::int64_t done = run.resumed()->manifest.state.step,
                     wanted = steps_of_run(config, run.resumed()->manifest.state);
  if (done < wanted || (done == wanted && !std::filesystem::exists(run.path() / "summary.json")))
    return false;
  std::printf(
      "nothing to do: the run in %s has done %lld steps and the config asks for %lld; to train on, raise "
      "%s\n",
      run.path().c_str(), static_cast<long long>(done), static_cast<long long>(wanted),
      config.train.steps ? "train.steps" : "train.tokens");
  finish_standard_output();  // this line is all that the command does
  return true;
}

// Rank 0 decides for all ranks: whether a run that is resumed has something to do with this config.
bool goes_on(const Config& config, const SharedRun& run, Ranks& ranks) {
  return on_rank_0(*ranks.group, "whether the run goes on", [&] {
           const std::vector<std::string> notes = compare_configs(config, *run.resumed());
           if (nothing_to_do(config, run)) return std::string();
           for (const std::string& note : notes) print_note(note);
           return std::string("it does");
         }) != "";
}

// The data of a run that is resumed must be those with which it began.
void check_data(DataRecord& data, const Config& config, const SharedRun& run, bool allow_changed_data,
                Ranks& ranks) {
  on_rank_0(*ranks.group, "whether the data are the same", [&] {
    for (const std::string& note : compare_data(data, config, *run.resumed(), allow_changed_data))
      print_note(note);
    return std::string();
  });
  keep_working_folder(data, run.resumed()->manifest.data);
}

// What a new run starts with, if the command line names another one's weights.
std::optional<InitialWeights> initial_weights(const TrainOptions& options, const Config& config,
                                              SharedRun& run, const Trainer& trainer, const DataRecord& data,
                                              Ranks& ranks) {
  if (options.init_from.empty()) return std::nullopt;
  if (run.resumed()) {
    if (ranks.first()) print_note("--init-from has no effect: the run in the folder goes on");
    return std::nullopt;
  }
  InitialWeights weights =
      match_weights(find_model(options.init_from, "--init-from", *ranks.group), config, trainer.parameters());
  if (!ranks.first()) return weights;
  const std::string& before = weights.from.manifest.data.tokenizer;
  if (!before.empty() && !data.tokenizer.empty() && before != data.tokenizer)
    print_note("--init-from: the model was trained on tokens of the tokenizer " + before +
               ", the data are of " + data.tokenizer + ": its embeddings mean other texts");
  run.folder()->starts_with(weights.json());
  return weights;
}

int train_as_rank(const TrainOptions& options, const Config& asked, Device& device, const std::string& why,
                  Ranks& ranks) {
  const MicroBatchChoice choice = config_of_ranks(asked, options, device, ranks);
  const Config& config = choice.config;
  on_rank_0(*ranks.group, "whether the device can do it", [&] {
    check_arithmetic(config, device);
    return std::string();
  });

  SharedRun run(run_folder(options),
                options.resume      ? ExistingRun::resume
                : options.overwrite ? ExistingRun::overwrite
                                    : ExistingRun::refuse,
                *ranks.group);
  if (run.resumed() && !goes_on(config, run, ranks)) return 0;

  const Config located =
      run.resumed() ? with_data_located(config, run.path(), run.resumed()->manifest.data) : config;
  const auto [training, validation] = open_data(located, ranks);
  DataRecord data = describe_data(*training, validation.get());
  if (run.resumed()) check_data(data, config, run, options.allow_changed_data, ranks);

  const RunState state = run.resumed() ? state_to_continue(config, *run.resumed()) : RunState{};
  Trainer trainer(config, device, *training, validation.get(), state, &ranks);
  trainer.require_memory();
  const std::optional<InitialWeights> weights = initial_weights(options, config, run, trainer, data, ranks);
  std::optional<TrainingLog> log;
  if (ranks.first()) {
    log.emplace(config, device, *run.folder(), trainer,
                peak_of(arithmetic_of(config, device), device.info(), options.peak_tflops));
    log->announce(why, *training, choice.origin, ranks);
    if (weights) log->announce(*weights);
  }
  trainer.allocate();
  if (run.resumed())
    trainer.restore(run.resumed()->folder);
  else
    trainer.initialize(weights ? &*weights : nullptr);

  watch_stop_signals();
  return TrainingLoop(config, device, trainer, run.folder(), log ? &*log : nullptr, run.path(), run.resumed(),
                      data)
      .run(training->bayes_optimal_loss());
}

// An error that this rank has alone ends the others, which wait for it; one that all have ends them in order.
int train(const TrainOptions& options, const std::string& device_name) {
  const Config asked = config_to_complete(options, started_as_first() ? print_note : no_notes);
  std::string why;
  std::unique_ptr<Device> device;  // outlives the ranks, which use it
  Ranks ranks = meet_ranks_of_run(asked, options, run_folder(options));
  connect_ranks(ranks, {asked.library_adds(), asked.distributed.levels},
                [&](const DevicePlace& place) -> Device& {
                  device = open_chosen_device(device_name, why, place);
                  return *device;
                });
  try {
    const int code = train_as_rank(options, asked, *device, why, ranks);
    ranks.group->finish();
    return code;
  } catch (const std::exception& error) {
    if (ranks.size() == 1) throw;
    if (!thrown_on_all_ranks(error)) end_all_ranks(*ranks.group, error);
    ranks.group->finish();
    if (ranks.first()) throw;
    return exit_code_of(error);
  }
}

int profile(const TrainOptions& options, Device& device) {
  const Config config = planned_config(options, device, print_note).config;
  check_arithmetic(config, device);
  if (config.train.cuda_graph == "on")
    print_note("train.cuda_graph has no effect in a profile: the parts of a graph have no times");
  profile_steps(config, device, options.profile, options.peak_tflops, run_folder(options) / profile_folder);
  return 0;
}

// What a run would take of the weights that --init-from names.
void print_initial_weights(const Config& config, const Device& device, const std::string& path) {
  ParameterSet parameters(model_dtype(config, device));
  declare_parameters(config, parameters);
  for (const std::string& line : match_weights(find_model(path, "--init-from"), config, parameters).lines())
    std::printf("initial weights: %s\n", line.c_str());
}

int run_command(const CommandLine& line) {
  const auto* training = std::get_if<TrainOptions>(&line.command);
  if (training && training->list_configs) return list_configs();
  if (training && training->print_config && !training->dry_run) {
    std::fputs(to_toml(chosen_config(*training, print_note)).c_str(), stdout);
    return 0;
  }
  if (training && !training->dry_run && training->profile == 0) return train(*training, line.device);
  std::string why;
  const std::unique_ptr<Device> device = open_chosen_device(line.device, why);
  if (training && training->dry_run) {
    const MicroBatchChoice choice = planned_config(*training, *device, print_note);
    const Config& config = choice.config;
    check_arithmetic(config, *device);
    if (training->resume)
      for (const std::string& note : check_resume(config, run_folder(*training))) print_note(note);
    dry_run(choice, planned_ranks(*training), run_folder(*training), *device,
            {training->tokens_per_second, training->peak_tflops});
    const bool goes_on = training->resume && !checkpoint_folders(run_folder(*training)).empty();
    if (!training->init_from.empty() && !goes_on) print_initial_weights(config, *device, training->init_from);
    if (training->print_config) std::printf("\n%s", to_toml(config).c_str());
    return 0;
  }
  if (training) return profile(*training, *device);
  if (const auto* evaluation = std::get_if<EvalOptions>(&line.command)) return run_eval(*evaluation, *device);
  if (const auto* analysis = std::get_if<AnalyzeOptions>(&line.command))
    return run_analyze(*analysis, *device);
  return run_sample(std::get<SampleOptions>(line.command), *device);
}

// Training may go on without anybody to read its lines: its result is the run's folder.
bool result_is_printed(const CommandLine& line) {
  const auto* training = std::get_if<TrainOptions>(&line.command);
  return !training || training->list_configs || training->print_config || training->dry_run ||
         training->profile > 0;
}

}  // namespace
}  // namespace goat

// Exit codes: 0 done, 1 runtime failure, 2 bad usage or config, 3 bad data or checkpoint, 4 stopped by a
// signal after saving.
int main(int argc, char** argv) {
  goat::limit_spinning(argv);
  goat::fill_standard_descriptors();
  std::signal(SIGPIPE, SIG_IGN);  // a closed terminal or `| head` must not stop a training run
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is an error message like a full disk
  try {
    const auto line = goat::parse_command_line(argc, argv);
    std::optional<int> code;
    if (line) code = goat::run_copies(*line, argc, argv);
    if (line && !code) code = goat::run_command(*line);
    if (!line || goat::result_is_printed(*line)) goat::finish_standard_output();
    return code.value_or(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return goat::exit_code_of(error);
  }
}
