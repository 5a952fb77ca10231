#include "train/training/training_plan.h"

#include "train/model/model_parameters.h"

namespace goat {

namespace {
// A library that adds knows the nodes by itself.
Sharding sharding_of(const Config& config, int rank, int ranks, int nodes) {
  constexpr std::int64_t mib = (1 << 20) / sizeof(float);
  const std::int64_t asked = config.distributed.bucket_mib * mib;
  return {rank, ranks, asked > 0 ? asked : default_bucket_elements(ranks), config.library_adds() ? 1 : nodes};
}

ExchangeOptions exchange_options(const Config& config) {
  return {.overlap = config.distributed.overlap,
          .library_adds = config.library_adds(),
          .wire = config.distributed.wire == "bf16" ? DType::bf16 : DType::f32};
}
}  // namespace

TrainingPlan::TrainingPlan(const Config& config_, const Device& device, int rank, int ranks, int nodes)
    : TrainingPlan(config_, device, sharding_of(config_, rank, ranks, nodes)) {}

TrainingPlan::TrainingPlan(const Config& config_, const Device& device, const Sharding& sharding)
    : config(config_),
      parameters(model_dtype(config_, device)),
      replicas(parameters, sharding, config.leaves(), exchange_options(config)) {
  declare_parameters(config, parameters);
  parameters.plan(memory, true, sharding);
  const BatchShape shape{config.micro_batch(), config.data.seq_len};
  model.emplace(config, device.info(), shape, true, parameters, memory);
  replicas.plan(memory);
  if (sharding.size > 1) weights_check.plan(memory, parameters);
  memory.add(MemoryCategory::optimizer, "step state", DType::f32, {sizeof(StepState) / sizeof(float)}, state);
  memory.add(MemoryCategory::activations, "token weights", DType::f32, {shape.tokens()}, token_weights);
  memory.add_workspace(
      device, [&](Device& survey) { run_passes(survey, sharding); }, workspace);
}

void TrainingPlan::run_passes(Device& survey, const Sharding& sharding) {
  Communicators nobody = unconnected(sharding);
  replicas.connect(survey, nobody);
  parameters.bind();
  model->bind(survey);
  replicas.begin_leaf();
  add_micro_batch(survey, true);
  replicas.end_leaf(replicas.own_leaves() - 1);
  judge();
  update(survey);
  if (sharding.size > 1) weights_check.enqueue(survey, parameters);
  replicas.disconnect();
}

Rounding TrainingPlan::rounding() const {
  return config.train.rounding == "stochastic" ? Rounding::stochastic : Rounding::nearest;
}

void TrainingPlan::enqueue_load(Device& device, std::span<const std::int32_t> inputs,
                                std::span<const std::int32_t> targets, std::span<const float> weights) const {
  model->enqueue_load(device, inputs, targets);
  device.enqueue_upload(token_weights.data, weights.data(), weights.size_bytes());
}

void TrainingPlan::add_micro_batch(Device& device, bool last) {
  Replicas::Hooks hooks(replicas, last && replicas.exchanges_in_pass());
  model->forward_backward(device, 1, token_weights, &hooks);
  device.run(AddLoss{.sum = replicas.leaf_loss(), .losses = model->losses(), .weights = token_weights});
}

void TrainingPlan::judge() const { replicas.judge(scalars(), static_cast<float>(config.train.clip)); }

void TrainingPlan::update(Device& device) {
  const auto& places = replicas.places();
  for (std::size_t place = 0; place < places.size(); ++place) {
    const auto& group = parameters.groups()[places[place].group];
    update(device, group, group.pieces[places[place].bucket]);
    replicas.gather_weights_of(place);
  }
}

void TrainingPlan::update(Device& device, const ParameterSet::Group& group, const Piece& piece) const {
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
                   .lr_scale = group.lr_scale,
                   .rounding = rounding(),
                   .seed = static_cast<std::uint64_t>(config.train.seed),
                   .first_element = group.first_element + piece.first});
}

}  // namespace goat
