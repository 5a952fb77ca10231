// Times training steps of the trainer itself on random tokens: tokens/s, share of the machine's sgemm rate,
// and where the time goes. For the cpu device, whose calls are complete when they return.
//
//   OMP_NUM_THREADS=2 bench_step
//       the model of dev/results/cpu_speed.md with the goat prior
//   OMP_NUM_THREADS=2 bench_step --attention both
//       steps with and without the prior in turn, and the median of their ratios
//   OMP_NUM_THREADS=2 bench_step --length 1024 --batch 1 --set model.layers=12
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/wait_policy.h"
#include "kernels/open/open_device.h"
#include "train/config/config.h"
#include "train/model/model_parameters.h"
#include "train/profile/machine_limits.h"
#include "train/profile/timed_device.h"
#include "train/training/sources.h"
#include "train/training/trainer.h"

namespace goat::bench {
namespace {

struct Options {
  std::string attention = "goat";
  std::int64_t length = 256;
  std::int64_t batch = 4;
  int steps = 10, warm_up = 2;
  bool brief = false;
  std::string clock = "wall";
  std::vector<std::string> settings;
};

// A GPT of 6 layers of width 384 with GPT-2's vocabulary; the built-in source without its copies gives
// uniformly random tokens.
Config config_of(const Options& options, const std::string& attention) {
  std::vector<std::string> settings = {"model.layers=6",
                                       "model.heads=6",
                                       "model.width=384",
                                       "model.vocab=50257",
                                       "model.attention=" + attention,
                                       "prior.pos_rank=2",
                                       "prior.abs_rank=8",
                                       "prior.recency=free",
                                       "data.seq_len=" + std::to_string(options.length),
                                       "data.copy_mixture.p_first=0",
                                       "data.copy_mixture.p_prev=0",
                                       "train.batch=" + std::to_string(options.batch),
                                       "train.lr=1e-4",
                                       "train.min_lr=1e-5"};
  settings.insert(settings.end(), options.settings.begin(), options.settings.end());
  return load_config("copy_mixture", settings);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// A model in training, and what its steps so far took.
class Run {
 public:
  Run(const Config& run_config, Device& device, Clock clock)
      : config(run_config),
        clock_(clock),
        device_(device, clock),
        source_(open_training_source(config)),
        trainer_(config, device_, *source_, nullptr) {
    trainer_.allocate();
    trainer_.initialize();
  }

  void step(bool record) {
    device_.start();
    const double start = clock_();
    trainer_.step();
    const double taken = clock_() - start;
    if (!record) return;
    seconds.push_back(taken);
    operations.push_back(totals_of(device_.take(), &TimedCall::host_seconds));
  }
  double tokens() const { return static_cast<double>(config.train.batch * config.data.seq_len); }

  const Config config;
  std::vector<double> seconds;  // of each step
  std::vector<Totals> operations;

 private:
  Clock clock_;
  TimedDevice device_;
  std::unique_ptr<TokenSource> source_;
  Trainer trainer_;
};

struct Row {
  std::string name;
  double milliseconds;
  long calls;
  Work work;
};

// Medians over the steps, the longest first.
std::vector<Row> rows_of(const Run& run) {
  std::vector<Row> rows;
  for (const auto& [name, total] : run.operations.front()) {
    std::vector<double> seconds;
    for (const Totals& step : run.operations) seconds.push_back(step.at(name).seconds);
    rows.push_back({name, 1e3 * median(seconds), total.calls, total.work});
  }
  std::sort(rows.begin(), rows.end(),
            [](const Row& a, const Row& b) { return a.milliseconds > b.milliseconds; });
  return rows;
}

void print_operations(const Run& run, const MachineLimits& limits) {
  const double step = 1e3 * median(run.seconds);
  double in_operations = 0;
  std::printf(
      "| operation | calls | ms a step | share %% | GFLOP/s | GB/s | FLOP/byte | attainable GFLOP/s | of "
      "roofline %% |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|\n");
  for (const Row& row : rows_of(run)) {
    const double seconds = 1e-3 * row.milliseconds, least = limits.seconds(row.work.flops, row.work.bytes);
    in_operations += row.milliseconds;
    std::printf("| %s | %ld | %.2f | %.1f | %.0f | %.1f | %.1f | %.0f | %.0f |\n", row.name.c_str(),
                row.calls, row.milliseconds, 100 * row.milliseconds / step, row.work.flops / seconds * 1e-9,
                row.work.bytes / seconds * 1e-9, row.work.flops / row.work.bytes,
                row.work.flops / least * 1e-9, 100 * least / seconds);
  }
  std::printf("| outside operations | | %.2f | %.1f | | | | | |\n\n", step - in_operations,
              100 - 100 * in_operations / step);
}

void print_summary(const Run& run, const MachineLimits& limits) {
  const double seconds = median(run.seconds), rate = run.tokens() / seconds * flops_per_token(run.config);
  std::printf("attention %s, T %lld, B %lld: %.1f ms a step, %.1f tokens/s, %.1f GFLOP/s, %.1f %% of sgemm\n",
              run.config.model.attention.c_str(), static_cast<long long>(run.config.data.seq_len),
              static_cast<long long>(run.config.train.batch), 1e3 * seconds, run.tokens() / seconds,
              rate * 1e-9, 100 * rate / limits.flops_per_second);
}

std::vector<double> ratios(const std::vector<double>& above, const std::vector<double>& below) {
  std::vector<double> result;
  for (std::size_t i = 0; i < above.size(); ++i) result.push_back(above[i] / below[i]);
  return result;
}

int main_of(const Options& options) {
  const Clock clock = options.clock == "wall" ? wall_clock : processor_clock;
  const std::unique_ptr<Device> device = open_device("cpu");
  std::vector<std::unique_ptr<Run>> runs;
  for (const char* attention : {"goat", "none"})
    if (options.attention == "both" || options.attention == attention)
      runs.push_back(std::make_unique<Run>(config_of(options, attention), *device, clock));

  MachineLimits limits = measure_machine(clock);
  for (int step = 0; step < options.warm_up + options.steps; ++step)
    for (const auto& run : runs) run->step(step >= options.warm_up);
  limits = best_of(limits, measure_machine(clock));

  std::printf("%s; sgemm %.0f GFLOP/s, memory %.1f GB/s; medians of %d steps, %s time\n",
              device->info().description.c_str(), limits.flops_per_second * 1e-9,
              limits.bytes_per_second * 1e-9, options.steps, options.clock.c_str());
  for (const auto& run : runs) {
    if (!options.brief) print_operations(*run, limits);
    print_summary(*run, limits);
  }
  if (runs.size() == 2)
    std::printf("cost of the prior, goat / none, median of the ratios of neighbouring steps: %.4f\n",
                median(ratios(runs[0]->seconds, runs[1]->seconds)));
  return 0;
}

}  // namespace
}  // namespace goat::bench

int main(int argc, char** argv) {
  goat::limit_spinning(argv);
  goat::bench::Options options;
  CLI::App app("Times training steps on random tokens.");
  app.add_option("--attention", options.attention, "goat, none or both")
      ->check(CLI::IsMember({"goat", "none", "both"}));
  app.add_option("--length", options.length, "T")->check(CLI::PositiveNumber);
  app.add_option("--batch", options.batch, "B")->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "timed steps")->check(CLI::PositiveNumber);
  app.add_option("--warm-up", options.warm_up, "steps before them")->check(CLI::NonNegativeNumber);
  app.add_option("--set", options.settings, "a config setting, section.key=value");
  app.add_option("--clock", options.clock,
                 "wall, or cpu: CPU time divided by the threads, for a busy machine")
      ->check(CLI::IsMember({"wall", "cpu"}));
  app.add_flag("--brief", options.brief, "no table of operations");
  CLI11_PARSE(app, argc, argv);
  try {
    return goat::bench::main_of(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
