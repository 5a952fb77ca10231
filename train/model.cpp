#include "train/model.h"

#include <algorithm>
#include <stdexcept>

#include "train/model_parameters.h"

namespace goat {

namespace {
// Rows of logits held at a time: few enough to stay near the cache, many enough for an efficient GEMM.
std::int64_t head_chunk(const Config& config, BatchShape shape) {
  constexpr std::int64_t chunk_elements = 16 << 20;  // 64 MiB of f32
  const std::int64_t rows = std::max<std::int64_t>(64, chunk_elements / padded_vocab(config) / 64 * 64);
  return std::min(rows, shape.tokens());
}
}  // namespace

Model::Model(const Config& config, BatchShape shape, bool training, const ParameterSet& parameters, MemoryPlan& memory)
    : shape_(shape), config_(config), embedding_(&parameters.at("embedding.padded")), final_norm_(parameters, "final_norm") {
  const std::int64_t tokens = shape.tokens(), width = config.model.width;
  memory.add(MemoryCategory::activations, "tokens", DType::i32, {tokens}, tokens_);
  memory.add(MemoryCategory::activations, "targets", DType::i32, {tokens}, targets_);
  memory.add(MemoryCategory::activations, "losses", DType::f32, {tokens}, losses_);
  memory.add(MemoryCategory::activations, "embedded", DType::f32, {tokens, width}, embedded_);
  shared_.plan(config, shape, training, memory);
  blocks_ = make_blocks(config, shape, training, parameters, memory);
  final_norm_.plan("final_norm", tokens, memory);
  memory.add(MemoryCategory::activations, "final_stream", DType::f32, {tokens, width}, final_stream_);
  memory.add(MemoryCategory::activations, "final_norm.out", DType::f32, {tokens, width}, normed_);
  memory.add(MemoryCategory::workspace, "logits", DType::f32, {head_chunk(config, shape), padded_vocab(config)}, logits_);
}

void Model::bind(Device& device) { shared_.fill_tables(config_, device); }

void Model::load(Device& device, const std::vector<std::int32_t>& inputs, const std::vector<std::int32_t>& targets) const {
  const auto tokens = static_cast<std::size_t>(shape_.tokens());
  if (inputs.size() != tokens || targets.size() != tokens) throw std::invalid_argument("Model::load: a micro-batch has " + std::to_string(tokens) + " tokens");
  device.upload(tokens_.data, inputs.data(), tokens_.bytes());
  device.upload(targets_.data, targets.data(), targets_.bytes());
}

void Model::forward(Device& device) {
  run_blocks(device);
  run_head(device, 1.0f, false);
}

void Model::forward_backward(Device& device, float token_weight) {
  run_blocks(device);
  run_head(device, token_weight, true);
  device.set_zero(shared_.dresidual.data, shared_.dresidual.bytes());
  final_norm_.backward(device, shared_.dresidual, shared_.dnorm, final_stream_);
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) (*block)->backward(device, shared_);
  device.run(EmbeddingBackward{.dtable = embedding_->grad, .dout = shared_.dresidual, .tokens = tokens_});
}

void Model::run_blocks(Device& device) {
  device.run(EmbeddingForward{.out = embedded_, .tokens = tokens_, .table = embedding_->value});
  Tensor residual = embedded_, branch;
  for (const auto& block : blocks_) {
    residual = block->forward(device, shared_, residual, branch);
    branch = shared_.branch;
  }
  final_norm_.forward(device, normed_, final_stream_, branch, residual);
}

void Model::run_head(Device& device, float token_weight, bool backward) {
  for (std::int64_t first = 0; first < shape_.tokens(); first += logits_.shape[0]) {
    const std::int64_t rows = std::min(logits_.shape[0], shape_.tokens() - first);
    const Tensor logits = logits_.slice(0, 0, rows), x = normed_.slice(0, first, rows);
    device.run(LinearForward{.out = logits, .x = x, .weight = embedding_->value, .bias = {}});
    device.run(CrossEntropy{.logits = logits,
                            .losses = losses_.slice(0, first, rows),
                            .targets = targets_.slice(0, first, rows),
                            .weights = {},
                            .weight = token_weight,
                            .vocab = config_.model.vocab,
                            .backward = backward});
    if (!backward) continue;
    device.run(LinearBackwardInput{.dx = shared_.dnorm.slice(0, first, rows), .dout = logits, .weight = embedding_->value});
    device.run(LinearBackwardWeight{.dweight = embedding_->grad, .dbias = {}, .dout = logits, .x = x});
  }
}

}  // namespace goat
