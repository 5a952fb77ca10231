// ParameterSet: the model's weights, gradients and optimizer state, in the device's layout and in the
// layout of checkpoints. Among several ranks, each has all weights and gradients, and a share of the rest.
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
#include "train/memory/sharding.h"

namespace goat {

// Initial values of a stored tensor: N(0, std^2), a constant, or one value per element.
struct Initial {
  double std = 0;
  double constant = 0;
  std::vector<double> values{};
};

// What a parameter is for. It decides the dtype of the value and whether weight decay applies. Gradients,
// AdamW's moments and masters (the fp32 weights whose rounded copies bf16 values are) are f32 for every role.
enum class ParameterRole {
  matrix,  // read by GEMMs or looked up: has the activations' dtype; decayed
  bias,    // added by a GEMM: has the activations' dtype; not decayed
  vector,  // weights of norms, the prior: f32 in every model; not decayed
  gate     // a matrix that a kernel of its own reads: f32 in every model; decayed
};

// One weight as the device holds it: views into the flat arrays of its group.
struct Parameter {
  std::string name;
  Tensor value;  // what the passes read
  Tensor grad;   // f32, training only
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

  // What is declared from now on belongs to the next unit: the parameters whose gradients a backward pass
  // completes together. Units are declared in the order of the forward pass, and lie in the flat arrays in
  // that of the backward pass.
  void begin_unit() { unit_starts_.push_back(parameters_.size()); }
  // Declares a parameter that is stored whole under its own name. Its learning rate is lr_scale times the
  // schedule's.
  Parameter& declare(const std::string& name, std::vector<std::int64_t> shape, ParameterRole role,
                     Initial initial, float lr_scale = 1);
  // Declares a parameter that is stored in parts. Add the parts with store().
  Parameter& declare_packed(const std::string& name, const std::vector<std::int64_t>& shape,
                            ParameterRole role, float lr_scale = 1);
  void store(const Parameter& parameter, const std::string& name, std::vector<std::int64_t> shape,
             const Tensor& layout, std::int64_t offset, Initial initial);

  // Plans gradients and optimizer state only if training.
  void plan(MemoryPlan& memory, bool training, const Sharding& sharding = {});
  void bind();  // sets the data of every parameter; call after memory.allocate()

  // Draws every stored tensor as a function of (seed, its name). Therefore a tensor starts with the same
  // values in every variant of the model. Writes this rank's pieces, as write_pieces() does.
  void initialize(Device& device, std::uint64_t seed);

  DType dtype() const { return dtype_; }
  const Parameter& at(const std::string& name) const;    // throws std::logic_error if there is none
  const Parameter* find(const std::string& name) const;  // nullptr if there is none of that name
  const std::deque<Parameter>& all() const { return parameters_; }
  const std::deque<StoredTensor>& stored() const { return stored_; }

  // Elements of a stored tensor's weights, gradients or optimizer state, row-major. Weights are the masters
  // where there are masters; writing them also writes the rounded values. These need a set that is not
  // shared among ranks.
  enum class Kind { value, grad, m, v };
  std::vector<float> read(Device& device, const StoredTensor& tensor, Kind kind = Kind::value) const;
  void write(Device& device, const StoredTensor& tensor, const std::vector<float>& values,
             Kind kind = Kind::value) const;
  // The same for the elements in this rank's pieces, which are all of them for one rank, in runs of at most a
  // few MiB, in increasing order: no host memory ever holds a whole large tensor. `first` is the row-major
  // index of the run's first element in the stored tensor. visit() reads the elements, fill() sets them.
  // After writing weights, the other ranks' pieces of the values must be gathered.
  void read_pieces(
      Device& device, const StoredTensor& tensor, Kind kind,
      const std::function<void(std::int64_t first, std::span<const float> elements)>& visit) const;
  void write_pieces(Device& device, const StoredTensor& tensor, Kind kind,
                    const std::function<void(std::int64_t first, std::span<float> elements)>& fill) const;

  // Flat arrays for the optimizer: one group for each triple (dtype of the values, decay, lr_scale) that
  // occurs, in the order of declaration. The padding between and after parameters is always zero.
  struct Group {
    DType dtype = DType::f32;
    bool decay = false;
    float lr_scale = 1;
    std::int64_t elements = 0;  // without what padded_elements() adds
    // Place of the group's first element in the model, whose groups stand one after the other.
    std::int64_t first_element = 0;
    std::vector<Bucket> buckets{};  // of value and grad
    // Of each bucket, the first unit that has parameters in it: the first that a forward pass reads, and the
    // last whose gradients a backward pass completes.
    std::vector<std::size_t> first_units{};
    std::vector<Piece> pieces{};  // this rank's, of each bucket
    Tensor value{}, grad{};       // all elements
    Tensor master{}, m{}, v{};    // this rank's pieces, one after the other
  };
  const std::vector<Group>& groups() const { return groups_; }
  std::size_t units() const { return unit_starts_.size(); }
  void zero_gradients(Device& device) const;
  // Rounds this rank's masters to its pieces of the values again, as AdamW did at update `update` with this
  // rounding and seed. A checkpoint holds the masters alone. Does nothing before the first update.
  void round_masters(Device& device, Rounding rounding, std::uint64_t seed, std::int64_t update) const;

 private:
  struct Placement {
    std::size_t group;
    std::int64_t offset;  // set by plan()
  };
  std::size_t group_of(ParameterRole role, float lr_scale);  // adds the group if it is new
  void place();  // gives every parameter its offset, in the order of backward
  std::size_t unit_of_parameter(std::size_t index) const;
  std::vector<std::size_t> first_units_of(std::size_t group) const;
  void plan_group(MemoryPlan& memory, bool training, const Sharding& sharding, Group& group) const;
  void require_unshared() const;  // throws std::logic_error
  const Placement& placement_of(const StoredTensor& tensor) const;
  template <class Visit>
  void for_each_owned_run(const StoredTensor& tensor, Visit visit) const;

  std::deque<Parameter> parameters_;  // deques keep the addresses of their elements
  std::vector<std::size_t> unit_starts_{0};
  std::deque<Placement> placements_;
  std::deque<StoredTensor> stored_;
  std::map<std::string, std::size_t> by_name_;
  std::vector<Group> groups_;
  DType dtype_;
  int ranks_ = 1;
};

}  // namespace goat
