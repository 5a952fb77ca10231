#include "train/trainer.h"

#include <algorithm>
#include <cmath>

#include "train/model_parameters.h"
#include "train/schedule.h"

namespace goat {

namespace {
ParameterSet declared(const Config& config) {
  ParameterSet parameters;
  declare_parameters(config, parameters);
  return parameters;
}
}  // namespace

Trainer::Trainer(const Config& config, Device& device, TokenSource& training, TokenSource* validation)
    : config_(config),
      device_(device),
      training_(training),
      validation_(validation),
      parameters_(declared(config)),
      model_(config, {config.micro_batch(), config.data.seq_len}, true, parameters_, memory_),
      inputs_(static_cast<std::size_t>(model_.shape().tokens())),
      targets_(inputs_.size()) {
  parameters_.plan(memory_, true);
  memory_.add(MemoryCategory::optimizer, "step state", DType::f32, {sizeof(StepState) / sizeof(float)}, state_);
  memory_.allocate(device);
  parameters_.bind();
  parameters_.initialize(device, static_cast<std::uint64_t>(config.train.seed));
  model_.bind(device);
}

StepState Trainer::step(std::int64_t step) {
  auto* state = static_cast<StepState*>(state_.data);
  const auto rate = static_cast<float>(learning_rate(config_.train, step, config_.steps()));
  const float weight = 1.0f / static_cast<float>(config_.train.batch * config_.data.seq_len);
  device_.upload(&state->learning_rate, &rate, sizeof rate);
  device_.set_zero(&state->loss, sizeof state->loss);

  parameters_.zero_gradients(device_);
  for (std::int64_t done = 0; done < config_.train.batch; done += model_.shape().sequences) {
    load(training_, static_cast<std::uint64_t>(step * config_.train.batch + done));
    model_.forward_backward(device_, weight);
    device_.run(AddLoss{.state = state, .losses = model_.losses(), .weights = {}, .weight = weight});
  }

  std::vector<Tensor> gradients;
  for (const auto& group : parameters_.groups()) gradients.push_back(group.grad);
  device_.run(GradientNorm{.state = state, .grads = gradients, .clip = static_cast<float>(config_.train.clip)});
  for (const auto& group : parameters_.groups()) {
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
    source.read(first + b, std::span(inputs_).subspan(b * length, length), std::span(targets_).subspan(b * length, length));
  model_.load(device_, inputs_, targets_);
}

}  // namespace goat
