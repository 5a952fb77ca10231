// ParameterSet: the model's weights with their gradients and optimizer state, as the device holds them and as
// a checkpoint stores them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/model/memory.h"

namespace goat {

// How a stored tensor starts: N(0, std^2), a constant, or one value a row (rows of a [n] tensor are its
// elements).
struct Initial {
  double std = 0;
  double constant = 0;
  std::vector<double> values{};
};

// One weight as the device holds it.
struct Parameter {
  std::string name;
  Tensor value;  // shaped views into the flat arrays of its group; all but value exist only where training
  Tensor grad;
  Tensor m, v;  // AdamW's moments
};

// A named tensor of the model as checkpoints and scripts see it: a strided view into a Parameter. Most are a
// whole parameter; the compact q and k projections are the content rows of the padded, packed QKV weight,
// whose remaining rows are always zero.
struct StoredTensor {
  std::string name;
  std::vector<std::int64_t> shape;  // as stored
  Tensor layout;  // the same elements, in the same order, inside the parameter: shape and strides, no data
  std::int64_t offset = 0;  // of its first element inside the parameter
  const Parameter* parameter = nullptr;
  Initial initial;
};

class ParameterSet {
 public:
  ParameterSet() = default;
  ParameterSet(ParameterSet&&) = default;  // parameters keep their addresses
  ParameterSet(const ParameterSet&) = delete;

  // A parameter stored whole under its own name.
  Parameter& declare(const std::string& name, std::vector<std::int64_t> shape, bool decay, Initial initial);
  // A parameter that is stored as parts; add them with store().
  Parameter& declare_packed(const std::string& name, const std::vector<std::int64_t>& shape, bool decay);
  void store(const Parameter& parameter, const std::string& name, std::vector<std::int64_t> shape,
             const Tensor& layout, std::int64_t offset, Initial initial);

  void plan(MemoryPlan& memory, bool training);  // gradients and optimizer state only where training
  void bind();                                   // after memory.allocate(): gives every parameter its views

  // Draws every stored tensor from (seed, its name): the same tensor starts the same in every variant of the
  // model.
  void initialize(Device& device, std::uint64_t seed);

  const Parameter& at(const std::string& name) const;
  const std::deque<StoredTensor>& stored() const { return stored_; }

  // A stored tensor's weights, gradients or optimizer state, row-major.
  enum class Kind { value, grad, m, v };
  std::vector<float> read(Device& device, const StoredTensor& tensor, Kind kind = Kind::value) const;
  void write(Device& device, const StoredTensor& tensor, const std::vector<float>& values,
             Kind kind = Kind::value) const;
  // The same in pieces of a few MiB, in order, so that a large tensor never exists twice: visit(elements) is
  // handed each piece, fill(first, elements) writes the piece that begins with element `first`.
  void read_pieces(Device& device, const StoredTensor& tensor, Kind kind,
                   const std::function<void(std::span<const float>)>& visit) const;
  void write_pieces(Device& device, const StoredTensor& tensor, Kind kind,
                    const std::function<void(std::int64_t, std::span<float>)>& fill) const;

  // Flat arrays for the optimizer: [0] takes weight decay, [1] does not. Padding between parameters is zero
  // and stays so.
  struct Group {
    bool decay = false;
    std::int64_t elements = 0;
    Tensor value{}, grad{}, m{}, v{};
  };
  const std::vector<Group>& groups() const { return groups_; }
  void zero_gradients(Device& device) const;

 private:
  static const Tensor& base_of(const StoredTensor& tensor, Kind kind);
  struct Placement {
    std::size_t group;
    std::int64_t offset;
  };
  std::deque<Parameter> parameters_;  // deques: stable addresses
  std::deque<Placement> placements_;
  std::deque<StoredTensor> stored_;
  std::map<std::string, std::size_t> by_name_;
  std::vector<Group> groups_{{.decay = true}, {.decay = false}};
};

}  // namespace goat
