// ParameterSet: the model's weights, gradients and optimizer state, in the device's layout and in the
// layout of checkpoints.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "train/memory/memory.h"

namespace goat {

// Initial values of a stored tensor: N(0, std^2), a constant, or one value per element.
struct Initial {
  double std = 0;
  double constant = 0;
  std::vector<double> values{};
};

// What a parameter is for. It decides the dtype of the value and whether weight decay applies. Gradients,
// AdamW's moments and masters are f32 for every role.
enum class ParameterRole {
  matrix,  // read by GEMMs or looked up: has the activations' dtype; decayed
  bias,    // added by a GEMM: has the activations' dtype; not decayed
  vector   // weights of norms, the prior: f32 in every model; not decayed
};

// One weight as the device holds it: views into the flat arrays of its group.
struct Parameter {
  std::string name;
  Tensor value;   // what the passes read
  Tensor master;  // f32, training only: the weight whose rounded copy `value` is; absent if value is f32
  Tensor grad;    // f32, training only
  Tensor m, v;    // f32, training only: AdamW's moments
};

// A named tensor of the model as checkpoints and scripts see it: a strided view into a Parameter. Most stored
// tensors are a whole parameter. The compact q and k projections are the content rows of the padded, packed
// QKV weight; its other rows are always zero.
struct StoredTensor {
  std::string name;
  std::vector<std::int64_t> shape;  // as stored
  // Shape and strides of the same elements, in the same order, inside the parameter. Has no data.
  Tensor layout;
  std::int64_t offset = 0;  // of the first element inside the parameter
  const Parameter* parameter = nullptr;
  Initial initial;
};

class ParameterSet {
 public:
  // `dtype`, f32 or bf16, is that of activations, and so of matrices and biases.
  explicit ParameterSet(DType dtype = DType::f32) : dtype_(dtype) {}
  ParameterSet(const ParameterSet&) = delete;  // plans and layers refer to its tensors

  // Declares a parameter that is stored whole under its own name.
  Parameter& declare(const std::string& name, std::vector<std::int64_t> shape, ParameterRole role,
                     Initial initial);
  // Declares a parameter that is stored in parts. Add the parts with store().
  Parameter& declare_packed(const std::string& name, const std::vector<std::int64_t>& shape,
                            ParameterRole role);
  void store(const Parameter& parameter, const std::string& name, std::vector<std::int64_t> shape,
             const Tensor& layout, std::int64_t offset, Initial initial);

  void plan(MemoryPlan& memory, bool training);  // gradients and optimizer state only if training
  void bind();  // sets the data of every parameter; call after memory.allocate()

  // Draws every stored tensor as a function of (seed, its name). Therefore a tensor starts with the same
  // values in every variant of the model.
  void initialize(Device& device, std::uint64_t seed);

  DType dtype() const { return dtype_; }
  const Parameter& at(const std::string& name) const;    // throws std::logic_error if there is none
  const Parameter* find(const std::string& name) const;  // nullptr if there is none of that name
  const std::deque<StoredTensor>& stored() const { return stored_; }

  // Elements of a stored tensor's weights, gradients or optimizer state, row-major. Weights are the masters
  // where there are masters; writing them also writes the rounded values.
  enum class Kind { value, grad, m, v };
  std::vector<float> read(Device& device, const StoredTensor& tensor, Kind kind = Kind::value) const;
  void write(Device& device, const StoredTensor& tensor, const std::vector<float>& values,
             Kind kind = Kind::value) const;
  // The same in pieces of a few MiB, in order, so that host memory never holds a whole large tensor.
  // visit(elements) reads a piece. fill(first, elements) writes the piece that begins with element `first`.
  void read_pieces(Device& device, const StoredTensor& tensor, Kind kind,
                   const std::function<void(std::span<const float>)>& visit) const;
  void write_pieces(Device& device, const StoredTensor& tensor, Kind kind,
                    const std::function<void(std::int64_t, std::span<float>)>& fill) const;

  // Flat arrays for the optimizer: one group for each pair (dtype of the values, decay) that occurs, in the
  // order of declaration. The padding between parameters is always zero.
  struct Group {
    DType dtype = DType::f32;
    bool decay = false;
    std::int64_t elements = 0;
    // Place of the group's first element in the model, whose groups stand one after the other.
    std::int64_t first_element = 0;
    Tensor value{}, master{}, grad{}, m{}, v{};
  };
  const std::vector<Group>& groups() const { return groups_; }
  void zero_gradients(Device& device) const;
  // Rounds the masters to the values again, as AdamW did at update `update` with this rounding and seed. A
  // checkpoint holds the masters alone. Does nothing before the first update.
  void round_masters(Device& device, Rounding rounding, std::uint64_t seed, std::int64_t update) const;

 private:
  static const Tensor& base_of(const StoredTensor& tensor, Kind kind);
  std::size_t group_of(ParameterRole role);  // adds the group if it is new
  struct Placement {
    std::size_t group;
    std::int64_t offset;
  };
  std::deque<Parameter> parameters_;  // deques keep the addresses of their elements
  std::deque<Placement> placements_;
  std::deque<StoredTensor> stored_;
  std::map<std::string, std::size_t> by_name_;
  std::vector<Group> groups_;
  DType dtype_;
};

}  // namespace goat
