#include "train/training/training_plan.h"

#include "train/model/model_parameters.h"

namespace goat {

namespace {
Sharding sharding_of(const Config& config, int rank, int ranks) {
  constexpr std::int64_t mib = (1 << 20) / sizeof(float);
  const std::int64_t asked = config.distributed.bucket_mib * mib;
  return {rank, ranks, asked > 0 ? asked : default_bucket_elements(ranks)};
}
}  // namespace

TrainingPlan::TrainingPlan(const Config& config_, const Device& device, int rank, int ranks)
    : config(config_),
      parameters(model_dtype(config_, device)),
      replicas(parameters, sharding_of(config, rank, ranks), config.leaves()) {
  declare_parameters(config, parameters);
  parameters.plan(memory, true, sharding_of(config, rank, ranks));
  const BatchShape shape{config.micro_batch(), config.data.seq_len};
  model.emplace(config, device.info(), shape, true, parameters, memory);
  replicas.plan(memory);
  if (ranks > 1) weights_check.plan(memory, parameters);
  memory.add(MemoryCategory::optimizer, "step state", DType::f32, {sizeof(StepState) / sizeof(float)}, state);
  memory.add(MemoryCategory::activations, "token weights", DType::f32, {shape.tokens()}, token_weights);
  memory.add_workspace(
      device, [&](Device& survey) { run_passes(survey, rank, ranks); }, workspace);
}

void TrainingPlan::run_passes(Device& survey, int rank, int ranks) {
  const std::unique_ptr<Communicator> nobody = unconnected_rank(rank, ranks);
  parameters.bind();
  model->bind(survey);
  replicas.begin_leaf(survey);
  add_micro_batch(survey);
  replicas.end_leaf(survey, replicas.own_leaves() - 1);
  judge(survey, *nobody);
  update(survey, *nobody);
  if (ranks > 1) weights_check.enqueue(survey, parameters);
}

Rounding TrainingPlan::rounding() const {
  return config.train.rounding == "stochastic" ? Rounding::stochastic : Rounding::nearest;
}

void TrainingPlan::enqueue_load(Device& device, std::span<const std::int32_t> inputs,
                                std::span<const std::int32_t> targets, std::span<const float> weights) const {
  model->enqueue_load(device, inputs, targets);
  device.enqueue_upload(token_weights.data, weights.data(), weights.size_bytes());
}

void TrainingPlan::add_micro_batch(Device& device) {
  model->forward_backward(device, 1, token_weights);
  device.run(AddLoss{.sum = replicas.leaf_loss(), .losses = model->losses(), .weights = token_weights});
}

void TrainingPlan::judge(Device& device, Communicator& communicator) const {
  replicas.judge(device, communicator, scalars(), static_cast<float>(config.train.clip));
}

void TrainingPlan::update(Device& device, Communicator& communicator) const {
  for (const auto& group : parameters.groups())
    for (const Piece& piece : group.pieces) {
      const auto flat = [&](const Tensor& array) { return array.slice(0, piece.first, piece.elements); };
      const auto own = [&](const Tensor& shard) { return shard.slice(0, piece.shard_first, piece.elements); };
      device.run(AdamW{.state = scalars(),
                       .param = flat(group.value),
                       .master = group.master ? own(group.master) : Tensor{},
                       .m = own(group.m),
                       .v = own(group.v),
                       .grad = flat(group.grad),
                       .beta1 = static_cast<float>(config.train.beta1),
                       .beta2 = static_cast<float>(config.train.beta2),
                       .eps = static_cast<float>(config.train.eps),
                       .weight_decay = group.decay ? static_cast<float>(config.train.weight_decay) : 0.0f,
                       .rounding = rounding(),
                       .seed = static_cast<std::uint64_t>(config.train.seed),
                       .first_element = group.first_element + piece.first});
    }
  replicas.gather_weights(device, communicator);
}

}  // namespace goat
