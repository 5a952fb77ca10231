#include "train/training/training_plan.h"

#include <vector>

#include "train/model/model_parameters.h"

namespace goat {

TrainingPlan::TrainingPlan(const Config& config_, const Device& device)
    : config(config_), parameters(model_dtype(config_, device)) {
  declare_parameters(config, parameters);
  parameters.plan(memory, true);
  const BatchShape shape{config.micro_batch(), config.data.seq_len};
  model.emplace(config, device.info(), shape, true, parameters, memory);
  memory.add(MemoryCategory::optimizer, "step state", DType::f32, {sizeof(StepState) / sizeof(float)}, state);
  memory.add(MemoryCategory::activations, "token weights", DType::f32, {shape.tokens()}, token_weights);
  memory.add_workspace(
      device,
      [this](Device& survey) {
        parameters.bind();
        model->bind(survey);
        begin_step(survey);
        add_micro_batch(survey);
        measure_gradients(survey);
        update(survey);
      },
      workspace);
}

Rounding TrainingPlan::rounding() const {
  return config.train.rounding == "stochastic" ? Rounding::stochastic : Rounding::nearest;
}

void TrainingPlan::begin_step(Device& device) const {
  device.set_zero(&scalars()->loss, sizeof scalars()->loss);
  parameters.zero_gradients(device);
}

void TrainingPlan::enqueue_load(Device& device, std::span<const std::int32_t> inputs,
                                std::span<const std::int32_t> targets, std::span<const float> weights) const {
  model->enqueue_load(device, inputs, targets);
  device.enqueue_upload(token_weights.data, weights.data(), weights.size_bytes());
}

void TrainingPlan::add_micro_batch(Device& device) {
  model->forward_backward(device, 1, token_weights);
  device.run(AddLoss{.state = scalars(), .losses = model->losses(), .weights = token_weights});
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
                     .weight_decay = group.decay ? static_cast<float>(config.train.weight_decay) : 0.0f,
                     .rounding = rounding(),
                     .seed = static_cast<std::uint64_t>(config.train.seed),
                     .first_element = group.first_element});
}

}  // namespace goat
