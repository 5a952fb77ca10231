#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "train/model_parameters.h"
#include "train/schedule.h"

namespace goat {

bool can_train(const Config& config) { return config.model.block == "gpt"; }

TrainingPlan::TrainingPlan(const Config& config) {
  if (!can_train(config))
    throw ConfigError("model.block = \"" + config.model.block +
                      "\": this build trains gpt blocks only; --dry-run shows what the run would take");
  declare_parameters(config, parameters);
  parameters.plan(memory, true);
  model.emplace(config, BatchShape{config.micro_batch(), config.data.seq_len}, true, parameters, memory);
  memory.add(MemoryCategory::optimizer, "step state", DType::f32, {sizeof(StepState) / sizeof(float)}, state);
}

Trainer::Trainer(const Config& config, Device& device, TokenSource& training, TokenSource* validation)
    : config_(config),
      device_(device),
      training_(training),
      validation_(validation),
      plan_(config),
      model_(*plan_.model),
      spikes_(config.train.spike_z, config.train.spike_window) {}

namespace {
// The largest divisor of the batch below the present micro-batch whose plan fits.
std::string smaller_micro_batch(Config config, std::size_t available) {
  for (std::int64_t size = config.micro_batch() - 1; size >= 1; --size) {
    if (config.train.batch % size != 0) continue;
    config.train.micro_batch = size;
    if (TrainingPlan(config).memory.total_bytes() <= available)
      return "The largest micro-batch that fits is " + std::to_string(size) +
             ": --set train.micro_batch=" + std::to_string(size);
  }
  return "No micro-batch fits; set model.recompute = \"block\", or make the model or data.seq_len smaller";
}
}  // namespace

void Trainer::require_memory() const {
  const std::size_t available = device_.available_memory();
  if (plan_.memory.total_bytes() > available)
    plan_.memory.require_fits(device_, smaller_micro_batch(config_, available));
}

void Trainer::allocate() {
  plan_.memory.allocate(device_);
  inputs_.resize(static_cast<std::size_t>(model_.shape().tokens()));
  targets_.resize(inputs_.size());
  plan_.parameters.bind();
  model_.bind(device_);
}

void Trainer::initialize() {
  plan_.parameters.initialize(device_, static_cast<std::uint64_t>(config_.train.seed));
}

void Trainer::restore(const std::filesystem::path& checkpoint, const RunState& state) {
  load_model(checkpoint, device_, plan_.parameters);
  load_optimizer(checkpoint, device_, plan_.parameters);
  spikes_ = SpikeFilter(config_.train.spike_z, config_.train.spike_window, state.spike_window);
  StepState scalars{};
  scalars.updates = state.updates;
  scalars.consecutive_skips = static_cast<std::int32_t>(state.consecutive_skips);
  device_.upload(plan_.state.data, &scalars, sizeof scalars);
}

StepState Trainer::step(std::int64_t step) {
  auto* state = static_cast<StepState*>(plan_.state.data);
  const float controls[] = {static_cast<float>(learning_rate(config_.train, step, config_.steps())),
                            spikes_.loss_limit(), spikes_.grad_norm_limit()};
  static_assert(offsetof(StepState, loss_limit) == sizeof(float) &&
                offsetof(StepState, grad_norm_limit) == 2 * sizeof(float));
  const float weight = 1.0f / static_cast<float>(config_.train.batch * config_.data.seq_len);
  device_.upload(&state->learning_rate, controls, sizeof controls);
  device_.set_zero(&state->loss, sizeof state->loss);

  plan_.parameters.zero_gradients(device_);
  for (std::int64_t done = 0; done < config_.train.batch; done += model_.shape().sequences) {
    load(training_, static_cast<std::uint64_t>(step * config_.train.batch + done));
    model_.forward_backward(device_, weight);
    device_.run(AddLoss{.state = state, .losses = model_.losses(), .weights = {}, .weight = weight});
  }

  std::vector<Tensor> gradients;
  for (const auto& group : plan_.parameters.groups()) gradients.push_back(group.grad);
  device_.run(
      GradientNorm{.state = state, .grads = gradients, .clip = static_cast<float>(config_.train.clip)});
  for (const auto& group : plan_.parameters.groups()) {
    device_.run(AdamW{.state = state,
                      .param = group.value,
                      .master = {},
                      .m = group.m,
                      .v = group.v,
                      .grad = group.grad,
                      .beta1 = static_cast<float>(config_.train.beta1),
                      .beta2 = static_cast<float>(config_.train.beta2),
                      .eps = static_cast<float>(config_.train.eps),
                      .weight_decay = group.decay ? static_cast<float>(config_.train.weight_decay) : 0.0f});
  }
  StepState result;
  device_.download(&result, state, sizeof result);
  if (!result.skip_update) spikes_.add(result.loss, result.grad_norm);
  return result;
}

std::optional<double> Trainer::validate() {
  if (!validation_ || config_.eval.batches == 0) return std::nullopt;
  const auto per_batch = static_cast<std::uint64_t>(model_.shape().sequences);
  const std::uint64_t wanted = per_batch * static_cast<std::uint64_t>(config_.eval.batches);
  const std::uint64_t sequences = std::min(wanted, validation_->sequences());
  const auto length = static_cast<std::size_t>(config_.data.seq_len);
  std::vector<float> losses(inputs_.size());
  double sum = 0, counted = 0;
  for (std::uint64_t first = 0; first < sequences; first += per_batch) {
    load(*validation_, first);
    model_.forward(device_);
    device_.download(losses.data(), model_.losses().data, model_.losses().bytes());
    const std::size_t rows = static_cast<std::size_t>(std::min(per_batch, sequences - first)) * length;
    for (std::size_t n = 0; n < rows; ++n) {
      if (targets_[n] < 0) continue;
      sum += static_cast<double>(losses[n]);
      ++counted;
    }
  }
  return sum / counted;
}

void Trainer::load(TokenSource& source, std::uint64_t first) {
  const auto length = static_cast<std::size_t>(config_.data.seq_len);
  for (std::size_t b = 0; b < inputs_.size() / length; ++b)
    source.read(first + b, std::span(inputs_).subspan(b * length, length),
                std::span(targets_).subspan(b * length, length));
  model_.load(device_, inputs_, targets_);
}

}  // namespace goat
