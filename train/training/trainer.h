// Trainer: training steps (micro-batches, clipping, AdamW) and validation for a model, its parameters and a
// data source. It owns the state of the run.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/token_source.h"
#include "train/config/config.h"
#include "train/replicas/ranks.h"
#include "train/run/checkpoint.h"
#include "train/run/initial_weights.h"
#include "train/training/divergence_watch.h"
#include "train/training/input_ring.h"
#include "train/training/spike_filter.h"
#include "train/training/training_plan.h"

namespace goat {

// What a rank wants after a step, or what one of them wants and all do.
struct StepWish {
  int signal = 0;     // to stop: the signal that came, 0: none
  int rank = 0;       // to which it came
  bool save = false;  // a checkpoint is due by the clock of rank 0
};

// The result of one step.
struct StepResult {
  StepState scalars;
  std::int64_t first_sequence = 0;  // index of the step's first sequence in the training source
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
  double seconds = 0;
  StepWish wish{};                        // of any rank, the same on all; nothing for one rank
  std::optional<std::string> divergence;  // see DivergenceWatch
};

// A step is enqueued on the device and runs while the host prepares the next one. Its result comes back one
// step later.
//
// Among several ranks, all make the same calls. Each trains its leaves of the batch; results, states and
// checkpoints are the same on all.
class Trainer {
 public:
  // Plans the memory, but does not allocate it. `validation` may be null. `state` is the state in the
  // checkpoint from which the run continues. Without `ranks` it trains alone; else their number divides
  // config.leaves(), and they must outlive the trainer.
  Trainer(const Config& config, Device& device, TokenSource& training, TokenSource* validation,
          const RunState& state = {}, Ranks* ranks = nullptr);
  Trainer(const Trainer&) = delete;
  ~Trainer();

  // Throws std::runtime_error if the plan does not fit. The message names a setting that fits.
  void require_memory() const;
  void allocate();  // then call initialize() or restore()
  // Draws the initial weights. `weights`: then loads these over them.
  void initialize(const InitialWeights* weights = nullptr);
  // Reads weights and moments. Throws DataError.
  void restore(const std::filesystem::path& checkpoint);

  // Enqueues the next step of the run, on the next train.batch sequences of the training source. The loss and
  // its gradient are those of train.loss over all targets of the step. Then waits for the step before, if it
  // still runs, and returns its result. Several ranks: `own_wish` is called once, as late as it still reaches
  // the others in this step. Throws DataError, and what the device throws.
  std::optional<StepResult> step(const std::function<StepWish()>& own_wish = {});
  // Waits for the step that still runs, and until all ranks have its weights. nullopt if there is none.
  std::optional<StepResult> finish_step();
  // Number of steps enqueued so far, over the whole run.
  std::int64_t enqueued() const { return state_.step + (running_ ? 1 : 0); }

  // train.loss, in nats per token, over the first eval.tokens tokens of the validation source, in whole
  // sequences: at least one, fewer if the source ends earlier. nullopt if there is no validation source.
  std::optional<double> validate();

  // Compares the weights of all ranks: see WeightsCheck.
  void check_weights();

  // The state after the steps whose results are known, as a checkpoint stores it.
  const RunState& state() const { return state_; }
  // Number of steps of the whole run. If the run's length is set in tokens, the steps already done count the
  // tokens that they really read.
  std::int64_t steps() const { return steps_; }
  InputRing::Waiting waiting_for_data() const { return inputs_ ? inputs_->waiting() : InputRing::Waiting{}; }
  bool finished() const { return enqueued() >= steps_; }
  // Whether weights, moments and state() belong together. They do not while a step runs, and no more after
  // one that failed during its update.
  bool consistent() const { return consistent_ && !running_; }

  Ranks& ranks() const { return ranks_; }
  const ParameterSet& parameters() const { return plan_.parameters; }
  const MemoryPlan& memory() const { return plan_.memory; }

 private:
  // What the host and the device exchange for one step, in memory that the device reads and writes by itself.
  struct StepMemory {
    float controls[3];              // learning_rate, loss_limit and grad_norm_limit of StepState
    StepState scalars;              // after the step
    double flags[Replicas::flags];  // this rank's
  };
  struct StepEvents {
    std::unique_ptr<DeviceEvent> begin, end;
  };
  struct RunningStep {
    bool ran_ahead;  // it was enqueued while the step before it still ran
  };
  // A pass over a micro-batch. The first one runs as it is, because in it a GPU loads its kernels and chooses
  // algorithms, and NCCL connects.
  struct RecordedPass {
    bool wanted = false;  // whether the device records it once and replays it (train.cuda_graph)
    bool ran = false;
    std::unique_ptr<DeviceGraph> graph{};  // once recorded
  };
  const Config& config() const { return plan_.config; }
  std::string memory_advice() const;
  StepMemory& memory_of(std::int64_t step) const;  // two take turns
  StepEvents& events_of(std::int64_t step) { return events_[static_cast<std::size_t>(step % 3)]; }
  double seconds_of(std::int64_t step);  // of the running step, once it is complete
  void enqueue_gradients(std::int64_t step, const StepInputs& inputs);
  void enqueue_verdict(std::int64_t step, const std::function<StepWish()>& own_wish);
  std::vector<SequenceLosses> losses_of_all(Cut cut);
  void settle_weights();
  std::optional<StepResult> await_step();
  void record(RecordedPass& pass, bool last);
  void enqueue_micro_batch(bool last);
  void set_spike_limits();
  void advance(const StepResult& result);

  Device& device_;
  TokenSource& training_;
  TokenSource* validation_;
  std::optional<Ranks> alone_;  // where no ranks are given
  Ranks& ranks_;
  TrainingPlan plan_;
  Model& model_;
  SpikeFilter spikes_;
  DivergenceWatch watch_;
  RunState state_;
  const std::int64_t steps_;
  RecordedPass pass_, exchanging_pass_;
  bool consistent_ = true;
  std::optional<RunningStep> running_;  // the step after state_
  std::optional<InputRing> inputs_;
  std::optional<HostBuffer> step_memory_;
  std::array<StepEvents, 3> events_;  // of the step that is enqueued, the one that runs, and the one before
};

// Number of steps of the whole run, seen from `state`: train.steps, or the steps done plus those that the
// rest of train.tokens needs.
std::int64_t steps_of_run(const Config& config, const RunState& state);

}  // namespace goat
