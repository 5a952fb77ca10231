// PositionalPart: one way in which a model learns of positions. A variant of attention is a list of parts.
//
// A part may add vectors to the embedded tokens, change q and k in place (a rotation, the lanes of a prior),
// and give attention a slope or a key bias. docs/extending.md walks through adding one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "train/config/config.h"
#include "train/memory/parameters.h"
#include "train/memory/pass_plan.h"

namespace goat {

// What one layer's attention shows to its parts in a pass.
struct AttentionInputs {
  Tensor x{};  // [N, C], what q, k and v are projections of
  Tensor q{};  // strided [B, T, H, d_h]; parts may change q and k
  Tensor k{};  // strided [B, T, H_k, d_h]
  // f64 [1, H, T_max]: with a KV cache the memory of the layer's key bias, which holds that of earlier tokens
  Tensor cached_key_bias{};
  std::int64_t first_position = 0;  // position of row 0; above 0 only with a KV cache
  float scale = 0;                  // what attention multiplies <q, k> by
  bool first_pass = true;           // of the model, since its memory was bound
};

// What attention's backward pass has computed.
struct AttentionGradients {
  Tensor dq{}, dk{};   // of q and k as forward left them
  Tensor dkey_bias{};  // f32 [B, H, T], dL/dz summed over the queries; only if a part reads it
};

// A part in one layer. It adds the gradients of its parameters in backward.
class PositionalLayer {
 public:
  virtual ~PositionalLayer() = default;
  // Plans what this layer keeps for itself. `prefix` starts the names of tensors.
  virtual void plan(const std::string& /*prefix*/, const PassPlan&) {}
  virtual void forward(Device&, const AttentionInputs&) {}
  // f32 [H], the slope that attention takes; absent if this part has none. Valid after forward.
  virtual Tensor slope() const { return {}; }
  // f64 [B, H, T], or T_max positions with a KV cache: the key bias that attention takes; absent if this part
  // has none. Valid after forward.
  virtual Tensor key_bias() const { return {}; }
  // Sets the optional outputs of attention's backward pass that this part alone reads: all but dkey_bias, for
  // which see PositionalPart::reads_dkey_bias.
  virtual void request_gradients(AttentionBackward&) const {}
  // Turns dq and dk into the gradients of what forward found in q and k.
  virtual void backward(Device&, const AttentionGradients&) {}
  // After backward, when dx [N, C] holds the gradient of x through q, k and v: adds to it what forward
  // computed from x.
  virtual void input_backward(Device&, const Tensor& /*dx*/, const Tensor& /*x*/) {}
};

// A part in the whole model: what its layers share, and what it adds to the embedded tokens.
class PositionalPart {
 public:
  virtual ~PositionalPart() = default;
  virtual void plan(const PassPlan&) {}       // what all layers share
  virtual void fill_tables(Device&) const {}  // call once after allocation, before the first pass
  // stream [N, C] += the vectors of its positions. Row 0 of a sequence is at `first_position`.
  virtual void add_to_stream(Device&, const Tensor& /*stream*/, std::int64_t /*first_position*/) const {}
  virtual void stream_backward(Device&, const Tensor& /*dstream*/) const {}
  // Whether its layers read AttentionGradients::dkey_bias, which is one tensor for all parts.
  virtual bool reads_dkey_bias() const { return false; }
  // The part in the layer whose parameters start with `prefix`. The layer refers to this part.
  virtual std::unique_ptr<PositionalLayer> layer(const ParameterSet& parameters,
                                                 const std::string& prefix) const = 0;
};

// The positional parts of a model, shared by its layers.
using PositionalParts = std::vector<std::unique_ptr<PositionalPart>>;

// A part that model.attention can name.
struct PositionalKind {
  const char* name;
  // Declares the parameters of one layer. Their names start with `prefix`. Absent if there are none.
  void (*declare)(const Config& config, const std::string& prefix, ParameterSet& parameters);
  // `parameters` must outlive the part.
  std::unique_ptr<PositionalPart> (*make)(const Config& config, const ParameterSet& parameters);
  // Declares the parameters of the whole model, in the embedding's unit. Absent if there are none.
  void (*declare_shared)(const Config& config, ParameterSet& parameters) = nullptr;
};

// The parts that model.attention names, in the order in which they act, whatever their order in the sum: none
// for "none".
std::vector<PositionalKind> positional_kinds(const Config& config);

}  // namespace goat
