#include "train/model/stem.h"

namespace goat {

Stem::Stem(const PassPlan& plan, const ParameterSet& parameters, const PositionalParts& parts)
    : embedding_(&parameters.at("embedding.padded")), parts_(parts) {
  plan.activation("tokens", DType::i32, {plan.shape.tokens()}, tokens_);
  plan.activation("embedded", {plan.shape.tokens(), plan.config.model.width}, stream_);
}

const Tensor& Stem::forward(Device& device, std::int64_t first_position) const {
  device.run(EmbeddingForward{.out = stream_, .tokens = tokens_, .table = embedding_->value});
  for (const auto& part : parts_) part->add_to_stream(device, stream_, first_position);
  return stream_;
}

void Stem::backward(Device& device, const Tensor& dstream) const {
  for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) (*part)->stream_backward(device, dstream);
  device.run(EmbeddingBackward{.dtable = embedding_->grad, .dout = dstream, .tokens = tokens_});
}

}  // namespace goat
