#include "train/training/trainer.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "train/model/evaluation.h"
#include "train/model/model_parameters.h"
#include "train/training/schedule.h"

namespace goat {

TrainingPlan::TrainingPlan(const Config& config_, const Device& device) : config(config_) {
  declare_parameters(config, parameters);
  parameters.plan(memory, true);
  model.emplace(config, BatchShape{config.micro_batch(), config.data.seq_len}, true, parameters, memory);
  memory.add(MemoryCategory::optimizer, "step state", DType::f32, {sizeof(StepState) / sizeof(float)}, state);
  memory.add_workspace(
      device,
      [this](Device& survey) {
        parameters.bind();
        model->bind(survey);
        add_micro_batch(survey, 1);
        measure_gradients(survey);
        update(survey);
      },
      workspace);
}

void TrainingPlan::add_micro_batch(Device& device, float token_weight) {
  model->forward_backward(device, token_weight);
  device.run(AddLoss{.state = scalars(), .losses = model->losses(), .weights = {}, .weight = token_weight});
}

void TrainingPlan::measure_gradients(Device& device) const {
  std::vector<Tensor> gradients;
  for (const auto& group : parameters.groups()) gradients.push_back(group.grad);
  device.run(
      GradientNorm{.state = scalars(), .grads = gradients, .clip = static_cast<float>(config.train.clip)});
}

void TrainingPlan::update(Device& device) const {
  for (const auto& group : parameters.groups())
    device.run(AdamW{.state = scalars(),
                     .param = group.value,
                     .master = group.master,
                     .m = group.m,
                     .v = group.v,
                     .grad = group.grad,
                     .beta1 = static_cast<float>(config.train.beta1),
                     .beta2 = static_cast<float>(config.train.beta2),
                     .eps = static_cast<float>(config.train.eps),
                     .weight_decay = group.decay ? static_cast<float>(config.train.weight_decay) : 0.0f});
}

Trainer::Trainer(const Config& config, Device& device, TokenSource& training, TokenSource* validation,
                 const RunState& state)
    : device_(device),
      training_(training),
      validation_(validation),
      plan_(config, device),
      model_(*plan_.model),
      spikes_(config.train.spike_z, config.train.spike_window, state.spike_window),
      watch_(config.model.vocab, state.best_loss),
      state_(state),
      steps_(steps_of_run(config, state)) {}

std::int64_t steps_of_run(const Config& config, const RunState& state) {
  if (config.train.steps) return config.train.steps;
  const std::int64_t left = std::max<std::int64_t>(config.train.tokens - state.tokens, 0);
  const std::int64_t tokens_a_step = config.train.batch * config.data.seq_len;
  return state.step + left / tokens_a_step + (left % tokens_a_step != 0);
}

namespace {
// The largest divisor of the batch that is below the present micro-batch and whose plan fits, as advice
// to the user.
std::string smaller_micro_batch(Config config, const Device& device, std::size_t available) {
  for (std::int64_t size = config.micro_batch() - 1; size >= 1; --size) {
    if (config.train.batch % size != 0) continue;
    config.train.micro_batch = size;
    if (TrainingPlan(config, device).memory.total_bytes() <= available)
      return "The largest micro-batch that fits is " + std::to_string(size) +
             ": --set train.micro_batch=" + std::to_string(size);
  }
  return "No micro-batch fits; set model.recompute = \"block\", or make the model or data.seq_len smaller";
}
}  // namespace

void Trainer::require_memory() const {
  const std::size_t available = device_.available_memory();
  if (plan_.memory.total_bytes() > available)
    plan_.memory.require_fits(device_, smaller_micro_batch(config(), device_, available));
}

void Trainer::allocate() {
  plan_.memory.allocate(device_);
  inputs_.resize(static_cast<std::size_t>(config().train.batch * config().data.seq_len));
  targets_.resize(inputs_.size());
  plan_.parameters.bind();
  const WorkspaceScope scope(device_, workspace_memory(plan_.workspace));
  model_.bind(device_);
}

void Trainer::initialize() {
  plan_.parameters.initialize(device_, static_cast<std::uint64_t>(config().train.seed));
}

void Trainer::restore(const std::filesystem::path& checkpoint) {
  load_model(checkpoint, device_, plan_.parameters);
  load_optimizer(checkpoint, device_, plan_.parameters);
  StepState scalars{};
  scalars.updates = state_.updates;
  scalars.consecutive_skips = static_cast<std::int32_t>(state_.consecutive_skips);
  device_.upload(plan_.state.data, &scalars, sizeof scalars);
}

StepResult Trainer::step() {
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t first = state_.sequences, batch = config().train.batch;
  read_step(first);
  const auto counted = std::ranges::count_if(targets_, [](std::int32_t target) { return target >= 0; });
  if (counted == 0)
    throw DataError(
        "training sequences " + std::to_string(first) + " to " + std::to_string(first + batch - 1) +
        " have no target that counts in the loss; look at the data of this step, or raise train.batch");
  const float weight = 1.0f / static_cast<float>(counted);

  const WorkspaceScope scope(device_, workspace_memory(plan_.workspace));
  StepState* const scalars = plan_.scalars();
  const float controls[] = {static_cast<float>(learning_rate(config().train, state_.step, steps_)),
                            spikes_.loss_limit(), spikes_.grad_norm_limit()};
  static_assert(offsetof(StepState, loss_limit) == sizeof(float) &&
                offsetof(StepState, grad_norm_limit) == 2 * sizeof(float));
  device_.upload(&scalars->learning_rate, controls, sizeof controls);
  device_.set_zero(&scalars->loss, sizeof scalars->loss);

  plan_.parameters.zero_gradients(device_);
  const std::span<const std::int32_t> inputs(inputs_), targets(targets_);
  const auto tokens = static_cast<std::size_t>(model_.shape().tokens());
  for (std::size_t done = 0; done < inputs.size(); done += tokens) {
    model_.load(device_, inputs.subspan(done, tokens), targets.subspan(done, tokens));
    plan_.add_micro_batch(device_, weight);
  }
  plan_.measure_gradients(device_);
  consistent_ = false;
  plan_.update(device_);
  StepResult result{.scalars = {},
                    .first_sequence = first,
                    .sequences = batch,
                    .tokens = std::ssize(inputs_),
                    .divergence = {}};
  device_.download(&result.scalars, scalars, sizeof result.scalars);
  if (!result.scalars.skip_update) spikes_.add(result.scalars.loss, result.scalars.grad_norm);
  result.divergence = watch_.add(result.scalars.loss);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  advance(result);
  consistent_ = true;
  return result;
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
}

std::optional<double> Trainer::validate() {
  if (!validation_ || config().eval.tokens == 0) return std::nullopt;
  const std::int64_t length = config().data.seq_len;
  const std::int64_t wanted = std::max<std::int64_t>(config().eval.tokens / length, 1);
  const auto there = std::min(validation_->sequences(), static_cast<std::uint64_t>(wanted));
  const Cut cut{.length = length, .sequences = static_cast<std::int64_t>(there)};
  const WorkspaceScope scope(device_, workspace_memory(plan_.workspace));
  state_.validation_loss = measure_losses(model_, device_, *validation_, cut, false).nll();
  return state_.validation_loss;
}

// Reads the sequences of the step whose first sequence is `first`.
void Trainer::read_step(std::int64_t first) {
  const auto length = static_cast<std::size_t>(config().data.seq_len);
  const std::span inputs(inputs_), targets(targets_);
  for (std::size_t b = 0; b < inputs.size() / length; ++b)
    training_.read(static_cast<std::uint64_t>(first) + b, inputs.subspan(b * length, length),
                   targets.subspan(b * length, length));
}

}  // namespace goat
