#include "train/training/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <stdexcept>
#include <string>

#include "train/model/evaluation.h"
#include "train/replicas/on_all_ranks.h"
#include "train/speed/device_limits.h"
#include "train/training/memory_fit.h"
#include "train/training/schedule.h"

namespace goat {

namespace {
constexpr Phase training_phase{"train"}, validation_phase{"validate", true};

// Flags 0 and 1 of a step; the largest of all ranks counts.
constexpr int signals = 128;
void set_flags(double (&flags)[Replicas::flags], const StepWish& wish) {
  flags[0] = wish.signal ? wish.rank * signals + wish.signal : 0;
  flags[1] = wish.save;
}
StepWish wish_of(const StepState& state) {
  return {state.flags[0] % signals, state.flags[0] / signals, state.flags[1] != 0};
}
}  // namespace

Trainer::Trainer(const Config& config, Device& device, TokenSource& training, TokenSource* validation,
                 const RunState& state, Ranks* ranks)
    : device_(device),
      training_(training),
      validation_(validation),
      ranks_(ranks ? *ranks : alone_.emplace(one_rank())),
      plan_(config, device, ranks_.rank(), ranks_.size(), ranks_.nodes()),
      model_(*plan_.model),
      spikes_(config.train.spike_z, config.train.spike_window, state.spike_window),
      watch_(config.model.vocab, state.best_loss, state.latest_losses),
      state_(state),
      steps_(steps_of_run(config, state)) {
  pass_.wanted = config.train.cuda_graph != "off" && device.can_capture();
  exchanging_pass_.wanted = config.train.cuda_graph == "on" && ranks_.communicators.world->can_capture();
  if (std::isnan(state_.loss_limit)) set_spike_limits();
  state_.precision = arithmetic_of(config, device) == Arithmetic::bf16 ? "bf16" : "fp32";
}

// The device may still read and write the host memory that is about to be released.
Trainer::~Trainer() {
  try {
    device_.synchronize();
  } catch (const std::exception&) {  // the error that ended the run
  }
}

std::int64_t steps_of_run(const Config& config, const RunState& state) {
  if (config.train.steps) return config.train.steps;
  const std::int64_t left = std::max<std::int64_t>(config.train.tokens - state.tokens, 0);
  const std::int64_t tokens_a_step = config.tokens_per_step();
  return state.step + left / tokens_a_step + (left % tokens_a_step != 0);
}

std::string Trainer::memory_advice() const {
  return setting_that_fits(config(), device_, usable_share(device_, *ranks_.group), ranks_.size());
}

void Trainer::require_memory() const {
  on_rank_0(*ranks_.group, "whether there is memory", [this] {
    plan_.memory.require_fits(
        device_, [this] { return memory_advice(); }, sharing_memory(device_, *ranks_.group));
    return std::string();
  });
}

void Trainer::allocate() {
  plan_.memory.allocate(device_, [this] { return memory_advice(); });
  plan_.parameters.bind();
  plan_.replicas.connect(device_, ranks_.communicators);
  for (StepEvents& events : events_) {
    events.begin = device_.make_event();
    events.end = device_.make_event();
  }
  try {
    step_memory_.emplace(device_, 2 * sizeof(StepMemory));
    inputs_.emplace(device_, *ranks_.group, training_, config().train.batch, config().data.seq_len,
                    InputRing::Range{state_.sequences, steps_ - state_.step}, TokenLoss(config().train));
  } catch (const std::bad_alloc&) {
    throw std::runtime_error("out of memory on the host: the inputs of " + std::to_string(InputRing::slots) +
                             " steps are kept there, each of train.batch = " +
                             std::to_string(config().train.batch) + " sequences; lower train.batch");
  }
  const WorkspaceScope scope(device_, workspace_memory(plan_.workspace));
  model_.bind(device_);
}

void Trainer::initialize(const InitialWeights* weights) {
  plan_.parameters.initialize(device_, static_cast<std::uint64_t>(config().train.seed));
  if (weights) load_weights(*weights, device_, plan_.parameters);
  plan_.replicas.gather_weights();
  settle_weights();
}

void Trainer::restore(const std::filesystem::path& checkpoint) {
  load_model(checkpoint, device_, plan_.parameters);
  load_optimizer(checkpoint, device_, plan_.parameters);
  plan_.parameters.round_masters(device_, plan_.rounding(), static_cast<std::uint64_t>(config().train.seed),
                                 state_.updates);
  plan_.replicas.gather_weights();
  settle_weights();
  StepState scalars{};
  scalars.updates = state_.updates;
  scalars.consecutive_skips = static_cast<std::int32_t>(state_.consecutive_skips);
  device_.upload(plan_.state.data, &scalars, sizeof scalars);
}

Trainer::StepMemory& Trainer::memory_of(std::int64_t step) const {
  return static_cast<StepMemory*>(step_memory_->data())[step % 2];
}

std::optional<StepResult> Trainer::step(const std::function<StepWish()>& own_wish) {
  const std::int64_t step = enqueued();
  ranks_.group->enter(training_phase);
  ranks_.group->at(step + 1);
  device_.record(*events_of(step).begin);
  const StepInputs& inputs = inputs_->next();
  const WorkspaceScope scope(device_, workspace_memory(plan_.workspace));
  enqueue_gradients(step, inputs);
  enqueue_verdict(step, own_wish);
  consistent_ = false;
  plan_.update(device_);
  device_.enqueue_download(&memory_of(step).scalars, plan_.scalars(), sizeof(StepState));
  device_.record(*events_of(step).end);
  const bool ran_ahead = running_.has_value();
  std::optional<StepResult> before = await_step();
  running_ = {.ran_ahead = ran_ahead};
  consistent_ = true;
  set_spike_limits();
  return before;
}

// Called when a step has been enqueued: the limits of the next step rest on the results before this one,
// whether anybody waits for it or not.
void Trainer::set_spike_limits() {
  state_.loss_limit = spikes_.loss_limit();
  state_.grad_norm_limit = spikes_.grad_norm_limit();
}

void Trainer::enqueue_gradients(std::int64_t step, const StepInputs& inputs) {
  float* const controls = memory_of(step).controls;
  controls[0] = static_cast<float>(learning_rate(config().train, step, steps_));
  controls[1] = static_cast<float>(state_.loss_limit);
  controls[2] = static_cast<float>(state_.grad_norm_limit);
  static_assert(offsetof(StepState, loss_limit) == sizeof(float) &&
                offsetof(StepState, grad_norm_limit) == 2 * sizeof(float));
  device_.enqueue_upload(&plan_.scalars()->learning_rate, controls, sizeof(StepMemory::controls));
  const auto tokens = static_cast<std::size_t>(model_.shape().tokens());
  const std::size_t leaf_tokens = static_cast<std::size_t>(config().leaf_sequences() * config().data.seq_len);
  std::size_t done = 0;
  for (std::int64_t leaf = 0; leaf < plan_.replicas.own_leaves(); ++leaf) {
    plan_.replicas.begin_leaf();
    for (const std::size_t end = done + leaf_tokens; done < end; done += tokens) {
      plan_.enqueue_load(device_, inputs.inputs.subspan(done, tokens), inputs.targets.subspan(done, tokens),
                         inputs.weights.subspan(done, tokens));
      enqueue_micro_batch(done + tokens == inputs.inputs.size());
    }
    plan_.replicas.end_leaf(leaf);
  }
}

void Trainer::enqueue_verdict(std::int64_t step, const std::function<StepWish()>& own_wish) {
  if (ranks_.size() > 1) {
    auto& flags = memory_of(step).flags;
    set_flags(flags, own_wish ? own_wish() : StepWish{});
    device_.enqueue_upload(plan_.replicas.own_flags(), flags, sizeof flags);
  }
  plan_.judge();
}

// Where there is no memory for the record, the passes go on without one.
void Trainer::record(RecordedPass& pass, bool last) {
  try {
    pass.graph = device_.capture([&] { plan_.add_micro_batch(device_, last); });
  } catch (const std::bad_alloc&) {
    if (config().train.cuda_graph == "on")
      throw std::runtime_error("out of memory on device " + device_.info().name +
                               ": train.cuda_graph = \"on\", but there is none left to record a micro-batch; "
                               "set it to auto or off, or lower train.micro_batch");
    pass.wanted = false;
  }
}

// A recorded pass waits for nothing: the weights must be there before it.
void Trainer::enqueue_micro_batch(bool last) {
  const bool exchanges = last && plan_.replicas.exchanges_in_pass();
  RecordedPass& pass = exchanges ? exchanging_pass_ : pass_;
  if (pass.wanted && pass.ran) {
    plan_.replicas.await_weights();
    if (!pass.graph) record(pass, last);
  }
  if (pass.graph)
    device_.replay(*pass.graph);
  else
    plan_.add_micro_batch(device_, last);
  pass.ran = true;
}

// A step that ran ahead follows on the one before it. Otherwise the time in between was not the step's.
double Trainer::seconds_of(std::int64_t step) {
  const DeviceEvent& start = running_->ran_ahead ? *events_of(step - 1).end : *events_of(step).begin;
  return device_.seconds_between(start, *events_of(step).end);
}

std::optional<StepResult> Trainer::await_step() {
  if (!running_) return std::nullopt;
  device_.wait(*events_of(state_.step).end);
  StepResult result{.scalars = memory_of(state_.step).scalars,
                    .first_sequence = state_.sequences,
                    .sequences = config().train.batch,
                    .tokens = config().tokens_per_step(),
                    .seconds = seconds_of(state_.step),
                    .wish = wish_of(memory_of(state_.step).scalars),
                    .divergence = {}};
  inputs_->release();
  running_.reset();
  if (!result.scalars.skip_update) spikes_.add(result.scalars.loss, result.scalars.grad_norm);
  result.divergence = watch_.add(result.scalars.loss);
  advance(result);
  return result;
}

std::optional<StepResult> Trainer::finish_step() {
  const std::optional<StepResult> result = await_step();
  if (result) settle_weights();
  return result;
}

// The weights are on their way while the host goes on. Before it exchanges anything with the other ranks by
// itself, it waits: nothing of the device that needs them may be left.
void Trainer::settle_weights() {
  if (ranks_.size() == 1) return;
  plan_.replicas.await_weights();
  device_.synchronize();
}

void Trainer::advance(const StepResult& result) {
  ++state_.step;
  state_.sequences += result.sequences;
  state_.tokens += result.tokens;
  state_.updates = result.scalars.updates;
  state_.consecutive_skips = result.scalars.consecutive_skips;
  state_.skipped_updates += result.scalars.skip_update != 0;
  state_.seconds += result.seconds;
  state_.spike_window = spikes_.values();
  state_.loss = result.scalars.loss;
  state_.best_loss = watch_.best();
  state_.latest_losses = watch_.latest();
}

std::optional<double> Trainer::validate() {
  if (!validation_ || config().eval.tokens == 0) return std::nullopt;
  ranks_.group->enter(validation_phase);
  const std::int64_t length = config().data.seq_len;
  const std::int64_t wanted = std::max<std::int64_t>(config().eval.tokens / length, 1);
  const auto there = std::min(validation_->sequences(), static_cast<std::uint64_t>(wanted));
  const Cut cut{.length = length, .sequences = static_cast<std::int64_t>(there)};
  const WorkspaceScope scope(device_, workspace_memory(plan_.workspace));
  state_.validation_loss = TokenLoss(config().train).of(losses_of_all(cut));
  return state_.validation_loss;
}

// Of the sequences of the cut, in order: each rank measures its share.
std::vector<SequenceLosses> Trainer::losses_of_all(Cut cut) {
  const auto share = [&] {
    return measure_sequences(model_, device_, *validation_, cut, {ranks_.rank(), ranks_.size()});
  };
  if (ranks_.size() == 1) return share();
  const std::vector<std::string> parts = on_all_ranks(*ranks_.group, "the losses of the validation", [&] {
    const std::vector<SequenceLosses> losses = share();
    return std::string(reinterpret_cast<const char*>(losses.data()), losses.size() * sizeof losses[0]);
  });
  std::vector<SequenceLosses> all;
  for (const std::string& part : parts) {
    all.resize(all.size() + part.size() / sizeof(SequenceLosses));
    std::memcpy(all.data() + all.size() - part.size() / sizeof(SequenceLosses), part.data(), part.size());
  }
  return all;
}

void Trainer::check_weights() {
  plan_.weights_check.compare(device_, plan_.parameters, *ranks_.group,
                              "step " + std::to_string(state_.step));
}

}  // namespace goat
