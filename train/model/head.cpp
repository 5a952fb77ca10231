#include "train/model/head.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "train/model/model_parameters.h"

namespace goat {

namespace {
// Number of rows in a chunk of logits. All chunks have about the same size.
std::int64_t chunk_rows(const PassPlan& plan) {
  constexpr std::int64_t multiple = 64;
  const auto chunks_of = [](std::int64_t rows, std::int64_t chunk) { return (rows + chunk - 1) / chunk; };
  const std::int64_t tokens = plan.shape.tokens(),
                     most = std::max(multiple, plan.device.chunk_elements / padded_vocab(plan.config) /
                                                   multiple * multiple);
  const std::int64_t even = chunks_of(tokens, chunks_of(tokens, most));
  return std::min(chunks_of(even, multiple) * multiple, tokens);
}
}  // namespace

Head::Head(const PassPlan& plan, const ParameterSet& parameters)
    : weight_(&parameters.at(plan.config.model.tied ? "embedding.padded" : "head.padded")),
      vocab_(plan.config.model.vocab),
      factors_(factors_of(plan.config)) {
  plan.activation("targets", DType::i32, {plan.shape.tokens()}, targets_);
  plan.activation("losses", DType::f32, {plan.shape.tokens()}, losses_);
  plan.workspace("logits", {chunk_rows(plan), padded_vocab(plan.config)}, logits_);
}

void Head::compute_losses(Device& device, const Tensor& normed, float weight, const Tensor& token_weights,
                          const Tensor& dnormed) const {
  const std::int64_t tokens = normed.shape[0];
  for (std::int64_t first = 0; first < tokens; first += logits_.shape[0]) {
    const std::int64_t rows = std::min(logits_.shape[0], tokens - first);
    const Tensor logits = logits_.slice(0, 0, rows), x = normed.slice(0, first, rows);
    device.run(
        LinearForward{.out = logits, .x = x, .weight = weight_->value, .bias = {}, .factors = factors_});
    device.run(CrossEntropy{.logits = logits,
                            .losses = losses_.slice(0, first, rows),
                            .targets = targets_.slice(0, first, rows),
                            .weights = token_weights ? token_weights.slice(0, first, rows) : Tensor{},
                            .weight = weight,
                            .vocab = vocab_,
                            .backward = static_cast<bool>(dnormed)});
    if (!dnormed) continue;
    device.run(LinearBackwardInput{
        .dx = dnormed.slice(0, first, rows), .dout = logits, .weight = weight_->value, .factors = factors_});
    device.run(LinearBackwardWeight{
        .dweight = weight_->grad, .dbias = {}, .dout = logits, .x = x, .factors = factors_});
  }
}

Tensor Head::logits(Device& device, const Tensor& normed, std::int64_t first, std::int64_t rows) const {
  if (rows > most_rows())
    throw std::invalid_argument("Head::logits: " + std::to_string(rows) + " rows, there is memory for " +
                                std::to_string(most_rows()));
  const Tensor logits = logits_.slice(0, 0, rows);
  device.run(LinearForward{.out = logits,
                           .x = normed.slice(0, first, rows),
                           .weight = weight_->value,
                           .bias = {},
                           .factors = factors_});
  return logits;
}

Tensor Head::next_logits(Device& device, const Tensor& normed, std::int64_t row) const {
  return logits(device, normed, row, 1).slice(1, 0, vocab_);
}

}  // namespace goat
