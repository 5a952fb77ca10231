// Block: one transformer block, x += attention(norm1(x)); x += mlp(norm2(x)). Its norms, MLP and biases are
// those of the model's BlockSpec.
#pragma once

#include <memory>

#include "train/model/attention_layer.h"
#include "train/model/mlp_layer.h"

namespace goat {

// The tensors that one block saves for backward, besides the residual stream at its entry.
struct BlockActivations {
  Tensor norm1;  // [N, C]
  AttentionActivations attention;
  Tensor residual;  // [N, C], the stream between the sub-layers
  Tensor norm2;     // [N, C]
  MlpActivations mlp;
  void plan(const std::string& prefix, const PassPlan& plan);
};

// The residual stream is the pair (residual, branch). The next norm computes their sum.
class Block {
 public:
  // `activations` is one for all blocks if nothing must be saved. `entry` [N, C] receives the residual stream
  // at the block's entry, including the pending branch: one for each block in training, otherwise one for
  // all. cache: the layer's part of a KvCache, or nullptr.
  Block(const Config& config, const ParameterSet& parameters, const PositionalParts& parts,
        const std::string& prefix, const LayerCache* cache, std::shared_ptr<BlockActivations> activations,
        std::shared_ptr<Tensor> entry);
  void plan(const PassPlan& plan);

  // Input: the residual stream; `branch` is absent in the first block. Writes the new branch to shared.branch
  // and returns the new residual.
  Tensor forward(Device& device, const BlockMemory& shared, const Tensor& residual, const Tensor& branch);
  // shared.dresidual holds the gradient of the block's output stream and is overwritten with that of its
  // input stream. Adds to the parameters' gradients.
  void backward(Device& device, const BlockMemory& shared);
  // What the attention kernel read in the latest pass. Valid until the next block runs, because blocks may
  // share this memory. Not with a KV cache.
  AttentionReads attention_reads() const { return attention_.reads(saved_->attention); }

 private:
  // Runs everything from attention to the MLP's hidden units.
  void forward_after_norm1(Device& device, const BlockMemory& shared);

  bool recompute_block_;
  NormLayer norm1_;
  AttentionLayer attention_;
  NormLayer norm2_;
  MlpLayer mlp_;
  std::shared_ptr<BlockActivations> saved_;
  std::shared_ptr<Tensor> entry_;
  Tensor stream_;  // *entry_, or the stem's output in the first block
};

}  // namespace goat
