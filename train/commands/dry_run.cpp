#include "train/commands/dry_run.h"

#include <cstdio>

#include "train/model/model_parameters.h"
#include "train/profile/run_time.h"
#include "train/replicas/leaves.h"
#include "train/run/run_folder.h"
#include "train/speed/progress.h"
#include "train/training/memory_fit.h"
#include "train/training/sources.h"
#include "train/training/trainer.h"

namespace goat {

namespace {
void print_count(const char* what, std::int64_t count, const char* remark = "") {
  std::printf("%-28s %20lld%s\n", what, static_cast<long long>(count), remark);
}

void print_memory(const MemoryPlan& memory) {
  for (const MemoryCategory category : memory_categories)
    std::printf("memory: %-20s %20s\n", name_of(category), bytes_text(memory.bytes(category)).c_str());
  std::printf("memory: %-20s %20s\n", "total", bytes_text(memory.total_bytes()).c_str());
}

// The largest micro-batch for each model.recompute on GPUs of the usual sizes.
void print_fitting_gpus(const Config& config, const Device& device, int ranks) {
  std::printf(
      "largest micro-batch by memory of the GPU and model.recompute (-: one sequence does not fit)\n");
  std::printf("%-12s %8s %8s %8s\n", "", "none", "gelu", "block");
  for (const std::size_t gibibytes : {24, 40, 80, 141}) {
    std::printf("%9zu GB ", gibibytes);
    for (const char* recompute : recompute_settings) {
      const std::int64_t largest =
          largest_micro_batch(with_recompute(config, recompute), device, usable_of(gibibytes << 30), ranks);
      std::printf(" %8s", largest > 0 ? std::to_string(largest).c_str() : "-");
    }
    std::printf("\n");
  }
}

void print_ranks(const Config& config, int ranks) {
  if (ranks > 1) print_count("ranks", ranks, "  (memory is that of each)");
  if (config.leaves() > 1) print_count("leaves of a batch", config.leaves());
  for (const std::string& note : notes_on_sums(config, ranks)) std::printf("note: %s\n", note.c_str());
}

// Of the whole run, from its first step on.
void print_time(double tokens, const std::optional<ExpectedSpeed>& speed) {
  if (speed)
    std::printf("%-28s %20s  (of training steps, at %.0f tokens/s: %s)\n", "time",
                duration_text(tokens / speed->tokens_per_second).c_str(), speed->tokens_per_second,
                speed->source.c_str());
  else
    std::printf(
        "%-28s %20s  (give --tokens-per-second or --peak-tflops, or train some steps into the folder)\n",
        "time", "not known");
}
}  // namespace

void dry_run(const MicroBatchChoice& choice, int ranks, const std::filesystem::path& run_folder,
             const Device& device, const SpeedOptions& speed) {
  const Config& config = choice.config;
  const ParameterCounts parameters = count_parameters(config);
  const std::int64_t tokens = config.tokens_per_step();
  print_count("parameters, trainable", parameters.trainable);
  print_count("  of them the prior's", parameters.prior);
  print_count("parameters, full q and k", parameters.full_projections,
              "  (the paper's count: full-width projections, without the prior)");
  std::printf("%-28s %20.4g\n", "FLOPs a token", flops_per_token(config));
  print_count("tokens a step", tokens);
  print_count("steps", config.steps());
  print_count("tokens in all", tokens * config.steps());
  print_time(static_cast<double>(tokens * config.steps()),
             expected_speed(config, arithmetic_of(config, device), device.info(), run_folder, speed));
  print_count("micro-batch", config.micro_batch(),
              choice.origin.empty() ? "" : ("  (" + choice.origin + ")").c_str());
  const TrainingPlan plan(config, device, 0, ranks);
  print_ranks(config, ranks);
  print_memory(plan.memory);
  std::printf("%-28s %20s\n", "memory: there is", bytes_text(device.available_memory()).c_str());
  const auto sharing = static_cast<std::size_t>(sharing_memory(device, ranks));
  if (sharing * plan.memory.total_bytes() > device.available_memory())
    std::printf("memory: too little. %s\n",
                setting_that_fits(config, device, usable_memory(device) / sharing, ranks).c_str());
  if (device.info().name == "cpu")
    std::printf("for the plan on a GPU: --device cuda, or --device simt of a build with `make SIMT=ON`\n");
  else
    print_fitting_gpus(config, device, ranks);
  std::printf("output folder:   %s: %s\n", run_folder.c_str(), describe_run_folder(run_folder).c_str());
  std::fflush(stdout);

  const auto training = open_training_source(config), validation = open_validation_source(config);
  std::printf("training data:   %s\n", training->description().c_str());
  if (training->sequences() != TokenSource::endless)
    std::printf("                 %.4g epochs\n", static_cast<double>(config.train.batch * config.steps()) /
                                                      static_cast<double>(training->sequences()));
  for (const std::string& share :
       training->shares(static_cast<std::uint64_t>(config.train.batch * config.steps())))
    std::printf("                 %s\n", share.c_str());
  std::printf("validation data: %s\n", validation ? validation->description().c_str() : "none");
  if (config.data.source == "shards")
    std::printf("tokenizer:       %s\n", tokenizer_text(config, *training).c_str());
  for (const std::string& note : training->notes()) std::printf("note: %s\n", note.c_str());
}

}  // namespace goat
