// What the transformer's layers share: the shape of a micro-batch, the memory they use in turn, and the
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
  std::int64_t context =
      0;  // T_max where a KV cache goes on from pass to pass (then B = 1); 0: every pass stands alone
  std::int64_t tokens() const { return sequences * length; }
  std::int64_t positions() const { return context ? context : length; }  // that the prior's tables cover
};

// Memory that every block uses in turn. [N, C] unless stated; gradients exist only where training.
struct SharedBuffers {
  Tensor branch;      // output of the latest sub-layer, not yet added to the residual stream
  Tensor gelu;        // [N, 4C], with recompute = gelu
  Tensor dresidual;   // gradient of the residual stream
  Tensor dnorm;       // gradient of a normalised input
  Tensor dattention;  // gradient of the attention output
  Tensor dhidden;     // [N, 4C]
  Tensor dqkv;        // [B, T, 3, H, d_h]
  Tensor delta;       // f32 [B, H, T]

  std::int64_t first_position = 0;  // of the pass's first token; above 0 only with a KV cache

  // Position tables of the prior [T_max rows with a KV cache], computed once (the Fourier table per step and
  // layer if frequencies are learned)
  Tensor positions;       // i32 [T, 1]
  Tensor frequency;       // f64 [R]
  Tensor fourier;         // f32 [T, R, 2]
  Tensor sink_frequency;  // f64 [M]
  Tensor sink_features;   // f32 [T, F]
  // Prior gradients as attention's backward leaves them; see kernels/operations.h
  Tensor dq_lanes, dk_lanes, dkey_bias, dkey_bias_sum, dslope, dlambda;

  void plan(const Config& config, BatchShape shape, bool training, MemoryPlan& memory);
  void fill_tables(const Config& config, Device& device) const;  // after allocation
};

// One transformer block. The residual stream travels as (residual, shared.branch): the pending branch is
// added by the next normalisation.
class Block {
 public:
  virtual ~Block() = default;
  // Takes the stream (branch absent in the first block), leaves the new branch in shared.branch and returns
  // the new residual.
  virtual Tensor forward(Device& device, SharedBuffers& shared, const Tensor& residual,
                         const Tensor& branch) = 0;
  // shared.dresidual: gradient of the block's output stream -> of its input stream. Adds to the parameters'
  // gradients.
  virtual void backward(Device& device, SharedBuffers& shared) = 0;
  // The latest pass's q, k and v as attention saw them [B, T, 3, H, d_h]; valid until the next block runs
  // (blocks may share this memory). Absent with a KV cache.
  virtual const Tensor& qkv() const = 0;
};

// The model's blocks over declared parameters, with their activations planned: kept for every block where
// training needs them, else one set for all. `cache` (optional) must outlive them.
std::vector<std::unique_ptr<Block>> make_blocks(const Config& config, BatchShape shape, bool training,
                                                const ParameterSet& parameters, MemoryPlan& memory,
                                                const KvCache* cache);

// y = x W^T + b over declared parameters "NAME.weight", "NAME.bias".
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

// LayerNorm of (x + residual) over declared parameters "NAME.weight", "NAME.bias"; keeps its statistics.
struct NormLayer {
  const Parameter* weight = nullptr;
  const Parameter* bias = nullptr;
  Tensor mean, rstd;  // f32 [N]
  NormLayer(const ParameterSet& parameters, const std::string& name);
  void plan(const std::string& name, std::int64_t tokens, MemoryPlan& memory);
  // out = norm(sum); with a residual, sum = x + residual is written first.
  void forward(Device& device, const Tensor& out, const Tensor& sum, const Tensor& x,
               const Tensor& residual) const;
  void backward(Device& device, const Tensor& dsum, const Tensor& dout, const Tensor& sum) const;
};

}  // namespace goat
