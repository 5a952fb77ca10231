// Shared by the transformer's layers: the shape of a micro-batch, the memory that all blocks reuse, and the
// interface of a block.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device.h"
#include "train/config/config.h"
#include "train/model/kv_cache.h"
#include "train/model/memory.h"
#include "train/model/parameters.h"

namespace goat {

struct BatchShape {
  std::int64_t sequences = 0;  // B
  std::int64_t length = 0;     // T
  // T_max if a KV cache carries keys and values from pass to pass (then B = 1); 0 if every
  // pass is independent.
  std::int64_t context = 0;
  std::int64_t tokens() const { return sequences * length; }
  // Number of positions in the prior's tables.
  std::int64_t positions() const { return context ? context : length; }
};

// Memory that every block reuses. Shapes are [N, C] unless stated. Gradients exist only in training.
struct SharedBuffers {
  Tensor branch;      // output of the latest sub-layer, not yet added to the residual stream
  Tensor gelu;        // [N, 4C], only if recompute = gelu
  Tensor dresidual;   // gradient of the residual stream
  Tensor dnorm;       // gradient of a normalised input
  Tensor dattention;  // gradient of the attention output
  Tensor dhidden;     // [N, 4C]
  Tensor dqkv;        // [B, T, 3, H, d_h]
  Tensor delta;       // f32 [B, H, T]

  std::int64_t first_position = 0;  // position of the pass's first token; above 0 only with a KV cache

  // Position tables of the prior, with T_max rows if there is a KV cache. They are computed once. With
  // learned frequencies each layer has its own Fourier table instead and computes it in every step.
  Tensor positions;       // i32 [T, 1]
  Tensor frequency;       // f64 [R]
  Tensor fourier;         // f32 [T, R, 2]
  Tensor sink_frequency;  // f64 [M]
  Tensor sink_features;   // f32 [T, F]
  // Gradients of the prior from AttentionBackward and SinkBackward (kernels/operations.h).
  Tensor dq_lanes, dk_lanes, dkey_bias, dkey_bias_sum, dslope, dlambda;

  void plan(const Config& config, BatchShape shape, bool training, MemoryPlan& memory);
  void fill_tables(const Config& config, Device& device) const;  // call after allocation
};

// One transformer block. The residual stream is the pair (residual, branch). The next normalisation
// computes their sum.
class Block {
 public:
  virtual ~Block() = default;
  // Input: the residual stream; `branch` is absent in the first block. Writes the new branch to shared.branch
  // and returns the new residual.
  virtual Tensor forward(Device& device, SharedBuffers& shared, const Tensor& residual,
                         const Tensor& branch) = 0;
  // shared.dresidual holds the gradient of the block's output stream and is overwritten with that of its
  // input stream. Adds to the parameters' gradients.
  virtual void backward(Device& device, SharedBuffers& shared) = 0;
  // q, k and v [B, T, 3, H, d_h] of the latest pass, as the attention kernel read them. Valid until the next
  // block runs, because blocks may share this memory. Absent with a KV cache.
  virtual const Tensor& qkv() const = 0;
};

// Makes the model's blocks over declared parameters and plans their activations: one set for each block if
// training needs them for backward, otherwise one set for all. `cache` (optional) must outlive the blocks.
std::vector<std::unique_ptr<Block>> make_blocks(const Config& config, BatchShape shape, bool training,
                                                const ParameterSet& parameters, MemoryPlan& memory,
                                                const KvCache* cache);

// y = x W^T + b over the declared parameters "NAME.weight" and "NAME.bias".
struct LinearLayer {
  const Parameter* weight = nullptr;
  const Parameter* bias = nullptr;
  bool tf32 = false;  // model.tf32 = all
  LinearLayer(const Config& config, const ParameterSet& parameters, const std::string& name);
  void forward(Device& device, const Tensor& out, const Tensor& x) const;
  void backward_input(Device& device, const Tensor& dx, const Tensor& dout) const;
  void backward_weight(Device& device, const Tensor& dout, const Tensor& x) const;

 private:
  Tensor matrix(const Tensor& packed) const;  // [.., O.., I] -> [O, I]
};

// LayerNorm of (x + residual) over the declared parameters "NAME.weight" and "NAME.bias". Keeps mean and
// rstd for backward.
struct NormLayer {
  const Parameter* weight = nullptr;
  const Parameter* bias = nullptr;
  Tensor mean, rstd;  // f32 [N]
  NormLayer(const ParameterSet& parameters, const std::string& name);
  void plan(const std::string& name, std::int64_t tokens, MemoryPlan& memory);
  // out = norm(sum). If there is a residual, sum = x + residual is written first.
  void forward(Device& device, const Tensor& out, const Tensor& sum, const Tensor& x,
               const Tensor& residual) const;
  void backward(Device& device, const Tensor& dsum, const Tensor& dout, const Tensor& sum) const;
};

}  // namespace goat
