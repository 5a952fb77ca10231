#include "train/model/model.h"

#include <stdexcept>

namespace goat {

namespace {
PositionalParts make_parts(const PassPlan& plan, const ParameterSet& parameters) {
  PositionalParts parts;
  for (const PositionalKind& kind : positional_kinds(plan.config)) {
    parts.push_back(kind.make(plan.config, parameters));
    parts.back()->plan(plan);
  }
  return parts;
}

BatchShape with_context(BatchShape shape, const KvCache* cache) {
  if (cache) shape.context = cache->capacity;
  return shape;
}

void require_tokens(BatchShape shape, std::span<const std::int32_t> tokens) {
  if (tokens.size() == static_cast<std::size_t>(shape.tokens())) return;
  throw std::invalid_argument("Model::load: a micro-batch has " + std::to_string(shape.tokens()) +
                              " tokens, not " + std::to_string(tokens.size()));
}
}  // namespace

Model::Model(const Config& config, const DeviceInfo& device, BatchShape shape, bool training,
             const ParameterSet& parameters, MemoryPlan& memory, KvCache* cache)
    : Model(PassPlan{.config = config,
                     .device = device,
                     .shape = with_context(shape, cache),
                     .training = training,
                     .dtype = parameters.dtype(),
                     .memory = memory},
            parameters, cache) {}

Model::Model(const PassPlan& plan, const ParameterSet& parameters, KvCache* cache)
    : shape_(plan.shape),
      parts_(make_parts(plan, parameters)),
      stem_(plan, parameters, parts_),
      trunk_(plan, parameters, parts_, cache),
      head_(plan, parameters) {}

void Model::bind(Device& device) {
  trunk_.bind(device);
  for (const auto& part : parts_) part->fill_tables(device);
}

void Model::load(Device& device, std::span<const std::int32_t> inputs,
                 std::span<const std::int32_t> targets) const {
  load(device, inputs);
  require_tokens(shape_, targets);
  device.upload(head_.targets().data, targets.data(), targets.size_bytes());
}

void Model::load(Device& device, std::span<const std::int32_t> inputs) const {
  require_tokens(shape_, inputs);
  device.upload(stem_.tokens().data, inputs.data(), inputs.size_bytes());
}

void Model::enqueue_load(Device& device, std::span<const std::int32_t> inputs,
                         std::span<const std::int32_t> targets) const {
  require_tokens(shape_, inputs);
  require_tokens(shape_, targets);
  device.enqueue_upload(stem_.tokens().data, inputs.data(), inputs.size_bytes());
  device.enqueue_upload(head_.targets().data, targets.data(), targets.size_bytes());
}

Tensor Model::next_logits(Device& device, std::int64_t row) {
  const Tensor& stream = stem_.forward(device, trunk_.first_position());
  return head_.next_logits(device, trunk_.forward(device, stream), row);
}

void Model::forward(Device& device) {
  const Tensor& stream = stem_.forward(device, trunk_.first_position());
  head_.compute_losses(device, trunk_.forward(device, stream), 1.0f, {}, {});
}

void Model::forward_backward(Device& device, float weight, const Tensor& token_weights, PassHooks* hooks) {
  if (hooks) hooks->before_forward(0);
  const Tensor& stream = stem_.forward(device, trunk_.first_position());
  head_.compute_losses(device, trunk_.forward(device, stream, hooks), weight, token_weights,
                       trunk_.output_gradient());
  stem_.backward(device, trunk_.backward(device, hooks));
  if (hooks) hooks->after_backward(0);
}

}  // namespace goat
