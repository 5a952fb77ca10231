#include "train/memory/parameters.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "kernels/bf16_bits.h"
#include "kernels/philox.h"
#include "train/memory/float_copies.h"

namespace goat {

namespace {
constexpr std::int64_t alignment = 64;  // elements; every parameter starts at a multiple of 256 bytes

Tensor shaped(const std::vector<std::int64_t>& shape, DType dtype, const char* name) {
  Tensor t = Tensor::contiguous(nullptr, dtype, {}, name);
  t.rank = static_cast<int>(shape.size());
  std::int64_t step = 1;
  for (int dim = t.rank - 1; dim >= 0; --dim) {
    t.shape[dim] = shape[static_cast<std::size_t>(dim)];
    t.stride[dim] = step;
    step *= t.shape[dim];
  }
  return t;
}

// FNV-1a: a fixed 64-bit number that selects the random stream of a tensor.
std::uint64_t hash_of(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const unsigned char c : name) hash = (hash ^ c) * 0x100000001b3u;
  return hash;
}

constexpr std::int64_t piece_elements = 1 << 20;

// Calls visit(first, count, offset) for every run of consecutive elements. The `count` elements from
// row-major index `first` on are at `offset` inside the parameter. A run has at most piece_elements elements.
template <class Visit>
void for_each_run(const StoredTensor& tensor, Visit visit) {
  const Tensor& layout = tensor.layout;
  int outer = layout.rank;  // dimensions [outer, rank) are contiguous
  std::int64_t length = 1;
  while (outer > 0 && layout.stride[outer - 1] == length) length *= layout.shape[--outer];
  std::array<std::int64_t, Tensor::max_rank> index{};
  for (std::int64_t first = 0; first < layout.elements(); first += length) {
    std::int64_t offset = tensor.offset;
    for (int dim = 0; dim < outer; ++dim) offset += index[dim] * layout.stride[dim];
    for (std::int64_t done = 0; done < length; done += piece_elements)
      visit(first + done, std::min(piece_elements, length - done), offset + done);
    for (int dim = outer - 1; dim >= 0 && ++index[dim] == layout.shape[dim]; --dim) index[dim] = 0;
  }
}

// Rounds each element to a neighbouring bf16 number as AdamW does; `place`: of the first element in the
// model, a multiple of 4.
void round_stochastically(std::span<float> elements, std::int64_t place, std::uint64_t seed,
                          std::int64_t update) {
  PhiloxBlock random{};
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (i % 4 == 0) random = rounding_bits(seed, place / 4 + static_cast<std::int64_t>(i / 4), update);
    elements[i] = bf16_value(bf16_bits(elements[i], random[i % 4]));
  }
}

// Computes elements first .. first + size - 1 of the tensor's initial values. One Philox block gives
// four normal values.
void initial_values(const StoredTensor& tensor, std::uint64_t seed, std::int64_t first,
                    std::span<float> elements) {
  const Initial& initial = tensor.initial;
  if (!initial.values.empty() && initial.values.size() != static_cast<std::size_t>(tensor.layout.elements()))
    throw std::logic_error(tensor.name + ": wrong number of initial values");
  const std::uint64_t item = hash_of(tensor.name);
  std::array<double, 4> normals{};
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const std::size_t n = static_cast<std::size_t>(first) + i;
    if (initial.std != 0 && (i == 0 || n % 4 == 0)) {
      const PhiloxBlock bits = philox(seed, RandomStream::init, item, static_cast<std::uint32_t>(n / 4));
      const auto a = normal_pair(bits[0], bits[1]), b = normal_pair(bits[2], bits[3]);
      normals = {a[0], a[1], b[0], b[1]};
    }
    const double start = initial.values.empty() ? initial.constant : initial.values[n];
    elements[i] = static_cast<float>(start + initial.std * normals[n % 4]);
  }
}
}  // namespace

Parameter& ParameterSet::declare(const std::string& name, std::vector<std::int64_t> shape, ParameterRole role,
                                 Initial initial) {
  Parameter& parameter = declare_packed(name, shape, role);
  store(parameter, name, std::move(shape), parameter.value, 0, std::move(initial));
  return parameter;
}

Parameter& ParameterSet::declare_packed(const std::string& name, const std::vector<std::int64_t>& shape,
                                        ParameterRole role) {
  if (!by_name_.emplace(name, parameters_.size()).second)
    throw std::logic_error("parameter declared twice: " + name);
  Parameter& parameter = parameters_.emplace_back();
  parameter.name = name;
  const std::size_t index = group_of(role);
  Group& group = groups_[index];
  parameter.value = shaped(shape, group.dtype, parameter.name.c_str());
  parameter.master = parameter.grad = parameter.m = parameter.v =
      shaped(shape, DType::f32, parameter.name.c_str());
  placements_.push_back({index, group.elements});
  group.elements += (parameter.value.elements() + alignment - 1) / alignment * alignment;
  return parameter;
}

std::size_t ParameterSet::group_of(ParameterRole role) {
  const DType dtype = role == ParameterRole::vector ? DType::f32 : dtype_;
  const bool decay = role == ParameterRole::matrix;
  const auto found = std::ranges::find_if(
      groups_, [&](const Group& group) { return group.dtype == dtype && group.decay == decay; });
  const auto index = static_cast<std::size_t>(found - groups_.begin());
  if (found == groups_.end()) groups_.push_back({.dtype = dtype, .decay = decay});
  return index;
}

void ParameterSet::store(const Parameter& parameter, const std::string& name, std::vector<std::int64_t> shape,
                         const Tensor& layout, std::int64_t offset, Initial initial) {
  stored_.push_back({name, std::move(shape), layout, offset, &parameter, std::move(initial)});
}

void ParameterSet::plan(MemoryPlan& memory, bool training) {
  std::int64_t elements = 0;
  for (Group& group : groups_) {
    group.first_element = std::exchange(elements, elements + group.elements);
    const std::string suffix = (group.dtype == dtype_ ? "" : std::string(name_of(group.dtype)) + " ") +
                               (group.decay ? "decayed" : "not decayed");
    const auto add = [&](MemoryCategory category, const char* what, DType dtype, Tensor& view) {
      memory.add(category, what + (", " + suffix), dtype, {group.elements}, view);
    };
    add(MemoryCategory::parameters, "weights", group.dtype, group.value);
    if (!training) continue;
    if (group.dtype != DType::f32) add(MemoryCategory::optimizer, "master weights", DType::f32, group.master);
    add(MemoryCategory::gradients, "gradients", DType::f32, group.grad);
    add(MemoryCategory::optimizer, "adam m", DType::f32, group.m);
    add(MemoryCategory::optimizer, "adam v", DType::f32, group.v);
  }
}

void ParameterSet::bind() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Group& group = groups_[placements_[i].group];
    const std::int64_t offset = placements_[i].offset;
    Parameter& parameter = parameters_[i];
    const auto bind = [offset](Tensor& view, const Tensor& array) {
      view.data = array ? element_of(array, offset) : nullptr;
    };
    bind(parameter.value, group.value);
    bind(parameter.master, group.master);
    bind(parameter.grad, group.grad);
    bind(parameter.m, group.m);
    bind(parameter.v, group.v);
  }
}

void ParameterSet::initialize(Device& device, std::uint64_t seed) {
  for (const Group& group : groups_)
    for (const Tensor& array : {group.value, group.master})
      if (array) device.set_zero(array.data, array.bytes());
  for (const StoredTensor& tensor : stored_)
    write_pieces(device, tensor, Kind::value, [&](std::int64_t first, std::span<float> elements) {
      initial_values(tensor, seed, first, elements);
    });
}

const Parameter* ParameterSet::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &parameters_[found->second];
}

const Parameter& ParameterSet::at(const std::string& name) const {
  if (const Parameter* parameter = find(name)) return *parameter;
  throw std::logic_error("the model has no parameter " + name);
}

const Tensor& ParameterSet::base_of(const StoredTensor& tensor, Kind kind) {
  const Parameter& parameter = *tensor.parameter;
  switch (kind) {
    case Kind::value: return parameter.master ? parameter.master : parameter.value;
    case Kind::grad: return parameter.grad;
    case Kind::m: return parameter.m;
    case Kind::v: return parameter.v;
  }
  throw std::logic_error("ParameterSet: unknown kind of tensor");
}

void ParameterSet::read_pieces(Device& device, const StoredTensor& tensor, Kind kind,
                               const std::function<void(std::span<const float>)>& visit) const {
  const Tensor& base = base_of(tensor, kind);
  std::vector<float> piece;
  for_each_run(tensor, [&](std::int64_t, std::int64_t count, std::int64_t offset) {
    piece.resize(static_cast<std::size_t>(count));
    download_floats(device, piece, base, offset);
    visit(piece);
  });
}

void ParameterSet::write_pieces(Device& device, const StoredTensor& tensor, Kind kind,
                                const std::function<void(std::int64_t, std::span<float>)>& fill) const {
  const Tensor& base = base_of(tensor, kind);
  const bool rounded_too = kind == Kind::value && tensor.parameter->master;
  std::vector<float> piece;
  for_each_run(tensor, [&](std::int64_t first, std::int64_t count, std::int64_t offset) {
    piece.resize(static_cast<std::size_t>(count));
    fill(first, piece);
    upload_floats(device, base, offset, piece);
    if (rounded_too) upload_floats(device, tensor.parameter->value, offset, piece);
  });
}

std::vector<float> ParameterSet::read(Device& device, const StoredTensor& tensor, Kind kind) const {
  std::vector<float> values;
  values.reserve(static_cast<std::size_t>(tensor.layout.elements()));
  read_pieces(device, tensor, kind,
              [&](std::span<const float> piece) { values.insert(values.end(), piece.begin(), piece.end()); });
  return values;
}

void ParameterSet::write(Device& device, const StoredTensor& tensor, const std::vector<float>& values,
                         Kind kind) const {
  if (values.size() != static_cast<std::size_t>(tensor.layout.elements()))
    throw std::logic_error(tensor.name + ": wrong number of values");
  write_pieces(device, tensor, kind, [&](std::int64_t first, std::span<float> piece) {
    std::copy_n(values.begin() + first, piece.size(), piece.begin());
  });
}

void ParameterSet::round_masters(Device& device, Rounding rounding, std::uint64_t seed,
                                 std::int64_t update) const {
  if (update == 0) return;
  for (const Group& group : groups_) {
    if (!group.master) continue;
    std::vector<float> masters;
    for (std::int64_t first = 0; first < group.elements; first += piece_elements) {
      masters.resize(static_cast<std::size_t>(std::min(piece_elements, group.elements - first)));
      download_floats(device, masters, group.master, first);
      if (rounding == Rounding::stochastic)
        round_stochastically(masters, group.first_element + first, seed, update);
      upload_floats(device, group.value, first, masters);
    }
  }
}

void ParameterSet::zero_gradients(Device& device) const {
  for (const Group& group : groups_) device.set_zero(group.grad.data, group.grad.bytes());
}

}  // namespace goat
