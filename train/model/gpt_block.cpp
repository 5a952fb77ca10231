// The GPT block: x += attention(norm1(x)); x += down(gelu(up(norm2(x)))).

#include "train/model/attention_layer.h"

namespace goat {

namespace {

// The tensors that one block saves for backward, besides the residual stream at its entry.
struct GptActivations {
  Tensor norm1;  // [N, C]
  AttentionActivations attention;
  Tensor residual;  // [N, C], the stream between the sub-layers
  Tensor norm2;     // [N, C]
  Tensor up;        // [N, 4C], before GELU
  Tensor gelu;      // [N, 4C]; not planned if recompute = gelu

  void plan(const std::string& prefix, const Config& config, BatchShape shape, MemoryPlan& memory) {
    const auto add = [&](const char* name, std::int64_t columns, Tensor& view) {
      memory.add(MemoryCategory::activations, prefix + name, DType::f32, {shape.tokens(), columns}, view);
    };
    add("norm1", config.model.width, norm1);
    attention.plan(prefix + "attention.", config, shape, memory);
    add("residual", config.model.width, residual);
    add("norm2", config.model.width, norm2);
    add("up", config.ff_width(), up);
    if (config.model.recompute != "gelu") add("gelu", config.ff_width(), gelu);
  }
};

class GptBlock final : public Block {
 public:
  GptBlock(const Config& config, const ParameterSet& parameters, const std::string& prefix,
           const Tensor* cached_qkv, std::shared_ptr<GptActivations> activations,
           std::shared_ptr<Tensor> entry)
      : recompute_gelu_(config.model.recompute == "gelu"),
        recompute_block_(config.model.recompute == "block"),
        norm1_(parameters, prefix + "norm1"),
        attention_(config, parameters, prefix + "attn.", cached_qkv),
        norm2_(parameters, prefix + "norm2"),
        up_(config, parameters, prefix + "mlp.up"),
        down_(config, parameters, prefix + "mlp.down"),
        saved_(std::move(activations)),
        entry_(std::move(entry)) {}

  void plan(const std::string& prefix, BatchShape shape, MemoryPlan& memory) {
    norm1_.plan(prefix + "norm1", shape.tokens(), memory);
    attention_.plan(prefix + "attn.", shape, memory);
    norm2_.plan(prefix + "norm2", shape.tokens(), memory);
  }

  Tensor forward(Device& device, SharedBuffers& shared, const Tensor& residual,
                 const Tensor& branch) override {
    stream_ = branch ? *entry_ : residual;
    norm1_.forward(device, saved_->norm1, *entry_, branch ? branch : residual, branch ? residual : Tensor{});
    forward_after_norm1(device, shared);
    down_.forward(device, shared.branch, gelu_buffer(shared));
    return saved_->residual;
  }

  void backward(Device& device, SharedBuffers& shared) override {
    if (recompute_block_) {
      norm1_.forward(device, saved_->norm1, {}, stream_, {});
      forward_after_norm1(device, shared);
    } else if (recompute_gelu_) {
      device.run(GeluForward{.out = shared.gelu, .x = saved_->up});
    }
    const Tensor& dresidual = shared.dresidual;
    down_.backward_weight(device, dresidual, gelu_buffer(shared));
    down_.backward_input(device, shared.dhidden, dresidual);
    device.run(GeluBackward{.dx = shared.dhidden, .dout = shared.dhidden, .x = saved_->up});
    up_.backward_weight(device, shared.dhidden, saved_->norm2);
    up_.backward_input(device, shared.dnorm, shared.dhidden);
    norm2_.backward(device, dresidual, shared.dnorm, saved_->residual);
    attention_.backward(device, shared, saved_->attention, shared.dnorm, dresidual, saved_->norm1);
    norm1_.backward(device, dresidual, shared.dnorm, stream_);
  }

  const Tensor& qkv() const override { return saved_->attention.qkv; }

 private:
  // Runs everything from attention to GELU. Uses shared.branch for the attention output, which needs no
  // memory of its own: norm2 saves its sum with the stream in saved_->residual.
  void forward_after_norm1(Device& device, SharedBuffers& shared) {
    attention_.forward(device, shared, saved_->attention, shared.branch, saved_->norm1);
    norm2_.forward(device, saved_->norm2, saved_->residual, shared.branch, stream_);
    up_.forward(device, saved_->up, saved_->norm2);
    device.run(GeluForward{.out = gelu_buffer(shared), .x = saved_->up});
  }
  const Tensor& gelu_buffer(const SharedBuffers& shared) const {
    return recompute_gelu_ ? shared.gelu : saved_->gelu;
  }

  bool recompute_gelu_, recompute_block_;
  NormLayer norm1_;
  AttentionLayer attention_;
  NormLayer norm2_;
  LinearLayer up_, down_;
  std::shared_ptr<GptActivations> saved_;  // one for all blocks if nothing must be saved
  // [N, C], the residual stream at the block's entry, including the pending branch. One for each block in
  // training, otherwise one for all.
  std::shared_ptr<Tensor> entry_;
  Tensor stream_;  // *entry_, or the embedding in the first block
};

}  // namespace

std::vector<std::unique_ptr<Block>> make_blocks(const Config& config, BatchShape shape, bool training,
                                                const ParameterSet& parameters, MemoryPlan& memory,
                                                const KvCache* cache) {
  const bool keep = training && config.model.recompute != "block";
  std::vector<std::unique_ptr<Block>> blocks;
  std::shared_ptr<GptActivations> activations;
  std::shared_ptr<Tensor> entry;
  for (std::int64_t layer = 0; layer < config.model.layers; ++layer) {
    const std::string prefix = "blocks." + std::to_string(layer) + ".";
    if (keep || !activations) {
      activations = std::make_shared<GptActivations>();
      activations->plan(prefix, config, shape, memory);
    }
    if (training || !entry) {
      entry = std::make_shared<Tensor>();
      memory.add(MemoryCategory::activations, prefix + "entry", DType::f32,
                 {shape.tokens(), config.model.width}, *entry);
    }
    const Tensor* cached_qkv = cache ? &cache->qkv[static_cast<std::size_t>(layer)] : nullptr;
    auto block = std::make_unique<GptBlock>(config, parameters, prefix, cached_qkv, activations, entry);
    block->plan(prefix, shape, memory);
    blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace goat
