#include "train/commands/dry_run.h"

#include <cstdio>

#include "train/model/model_parameters.h"
#include "train/run/run_folder.h"
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
}  // namespace

void dry_run(const Config& config, const std::filesystem::path& run_folder, const Device& device) {
  const ParameterCounts parameters = count_parameters(config);
  const std::int64_t tokens = config.train.batch * config.data.seq_len;
  print_count("parameters, trainable", parameters.trainable);
  print_count("  of them the prior's", parameters.prior);
  print_count("parameters, full q and k", parameters.full_projections,
              "  (the paper's count: full-width projections, without the prior)");
  std::printf("%-28s %20.4g\n", "FLOPs a token", flops_per_token(config));
  print_count("tokens a step", tokens);
  print_count("steps", config.steps());
  print_count("tokens in all", tokens * config.steps());
  print_memory(TrainingPlan(config, device).memory);
  std::printf("%-28s %20s\n", "memory: there is", bytes_text(device.available_memory()).c_str());
  std::printf("output folder:   %s: %s\n", run_folder.c_str(), describe_run_folder(run_folder).c_str());
  std::fflush(stdout);

  const auto training = open_training_source(config), validation = open_validation_source(config);
  std::printf("training data:   %s\n", training->description().c_str());
  if (training->sequences() != TokenSource::endless)
    std::printf("                 %.4g epochs\n", static_cast<double>(config.train.batch * config.steps()) /
                                                      static_cast<double>(training->sequences()));
  std::printf("validation data: %s\n", validation ? validation->description().c_str() : "none");
  if (config.data.source == "shards")
    std::printf("tokenizer:       %s\n", tokenizer_text(config, *training).c_str());
  for (const std::string& note : training->notes()) std::printf("note: %s\n", note.c_str());
}

}  // namespace goat
