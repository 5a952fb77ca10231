#include "train/model/model.h"

#include <algorithm>
#include <stdexcept>

#include "train/model/model_parameters.h"

namespace goat {

namespace {
// Number of rows in a chunk of logits. A GEMM of few rows is slow, because it repacks the embedding for each
// chunk. All chunks have about the same size.
std::int64_t head_chunk(const Config& config, BatchShape shape) {
  constexpr std::int64_t chunk_elements = 32 << 20;  // 128 MiB of f32
  constexpr std::int64_t multiple = 64;
  const auto chunks_of = [](std::int64_t rows, std::int64_t chunk) { return (rows + chunk - 1) / chunk; };
  const std::int64_t most = std::max(multiple, chunk_elements / padded_vocab(config) / multiple * multiple);
  const std::int64_t even = chunks_of(shape.tokens(), chunks_of(shape.tokens(), most));
  return std::min(chunks_of(even, multiple) * multiple, shape.tokens());
}

void require_tokens(BatchShape shape, std::span<const std::int32_t> tokens) {
  if (tokens.size() == static_cast<std::size_t>(shape.tokens())) return;
  throw std::invalid_argument("Model::load: a micro-batch has " + std::to_string(shape.tokens()) +
                              " tokens, not " + std::to_string(tokens.size()));
}
}  // namespace

Model::Model(const Config& config, BatchShape shape, bool training, const ParameterSet& parameters,
             MemoryPlan& memory, KvCache* cache)
    : shape_(shape),
      config_(config),
      tf32_(config.model.tf32 == "all"),
      cache_(cache),
      embedding_(&parameters.at("embedding.padded")),
      final_norm_(parameters, "final_norm") {
  if (cache) shape.context = cache->capacity;
  const std::int64_t tokens = shape.tokens(), width = config.model.width;
  memory.add(MemoryCategory::activations, "tokens", DType::i32, {tokens}, tokens_);
  memory.add(MemoryCategory::activations, "targets", DType::i32, {tokens}, targets_);
  memory.add(MemoryCategory::activations, "losses", DType::f32, {tokens}, losses_);
  memory.add(MemoryCategory::activations, "embedded", DType::f32, {tokens, width}, embedded_);
  shared_.plan(config, shape, training, memory);
  blocks_ = make_blocks(config, shape, training, parameters, memory, cache);
  final_norm_.plan("final_norm", tokens, memory);
  memory.add(MemoryCategory::activations, "final_stream", DType::f32, {tokens, width}, final_stream_);
  memory.add(MemoryCategory::activations, "final_norm.out", DType::f32, {tokens, width}, normed_);
  memory.add(MemoryCategory::workspace, "logits", DType::f32,
             {head_chunk(config, shape), padded_vocab(config)}, logits_);
}

void Model::bind(Device& device) { shared_.fill_tables(config_, device); }

void Model::load(Device& device, std::span<const std::int32_t> inputs,
                 std::span<const std::int32_t> targets) const {
  load(device, inputs);
  require_tokens(shape_, targets);
  device.upload(targets_.data, targets.data(), targets_.bytes());
}

void Model::load(Device& device, std::span<const std::int32_t> inputs) const {
  require_tokens(shape_, inputs);
  device.upload(tokens_.data, inputs.data(), tokens_.bytes());
}

Tensor Model::next_logits(Device& device, std::int64_t row) {
  run_blocks(device);
  const Tensor logits = logits_.slice(0, 0, 1);
  device.run(LinearForward{
      .out = logits, .x = normed_.slice(0, row, 1), .weight = embedding_->value, .bias = {}, .tf32 = tf32_});
  return logits.slice(1, 0, config_.model.vocab);
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
  shared_.first_position = cache_ ? cache_->length : 0;
  device.run(EmbeddingForward{.out = embedded_, .tokens = tokens_, .table = embedding_->value});
  Tensor residual = embedded_, branch;
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    residual = blocks_[layer]->forward(device, shared_, residual, branch);
    branch = shared_.branch;
    if (attention_observer_) attention_observer_(static_cast<std::int64_t>(layer), blocks_[layer]->qkv());
  }
  final_norm_.forward(device, normed_, final_stream_, branch, residual);
  if (cache_) cache_->length += shape_.length;
}

void Model::run_head(Device& device, float token_weight, bool backward) {
  for (std::int64_t first = 0; first < shape_.tokens(); first += logits_.shape[0]) {
    const std::int64_t rows = std::min(logits_.shape[0], shape_.tokens() - first);
    const Tensor logits = logits_.slice(0, 0, rows), x = normed_.slice(0, first, rows);
    device.run(LinearForward{.out = logits, .x = x, .weight = embedding_->value, .bias = {}, .tf32 = tf32_});
    device.run(CrossEntropy{.logits = logits,
                            .losses = losses_.slice(0, first, rows),
                            .targets = targets_.slice(0, first, rows),
                            .weights = {},
                            .weight = token_weight,
                            .vocab = config_.model.vocab,
                            .backward = backward});
    if (!backward) continue;
    device.run(LinearBackwardInput{.dx = shared_.dnorm.slice(0, first, rows),
                                   .dout = logits,
                                   .weight = embedding_->value,
                                   .tf32 = tf32_});
    device.run(LinearBackwardWeight{
        .dweight = embedding_->grad, .dbias = {}, .dout = logits, .x = x, .tf32 = tf32_});
  }
}

}  // namespace goat
