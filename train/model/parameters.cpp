#include "train/model/parameters.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/philox.h"

namespace goat {

namespace {
constexpr std::int64_t alignment = 64;  // elements; every parameter starts at a multiple of 256 bytes

Tensor shaped(const std::vector<std::int64_t>& shape, const char* name) {
  Tensor t = Tensor::contiguous(nullptr, DType::f32, {}, name);
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

Parameter& ParameterSet::declare(const std::string& name, std::vector<std::int64_t> shape, bool decay,
                                 Initial initial) {
  Parameter& parameter = declare_packed(name, shape, decay);
  store(parameter, name, std::move(shape), parameter.value, 0, std::move(initial));
  return parameter;
}

Parameter& ParameterSet::declare_packed(const std::string& name, const std::vector<std::int64_t>& shape,
                                        bool decay) {
  if (!by_name_.emplace(name, parameters_.size()).second)
    throw std::logic_error("parameter declared twice: " + name);
  Parameter& parameter = parameters_.emplace_back();
  parameter.name = name;
  parameter.value = parameter.grad = parameter.m = parameter.v = shaped(shape, parameter.name.c_str());
  const std::size_t group = decay ? 0 : 1;
  placements_.push_back({group, groups_[group].elements});
  groups_[group].elements += (parameter.value.elements() + alignment - 1) / alignment * alignment;
  return parameter;
}

void ParameterSet::store(const Parameter& parameter, const std::string& name, std::vector<std::int64_t> shape,
                         const Tensor& layout, std::int64_t offset, Initial initial) {
  stored_.push_back({name, std::move(shape), layout, offset, &parameter, std::move(initial)});
}

void ParameterSet::plan(MemoryPlan& memory, bool training) {
  for (Group& group : groups_) {
    const std::string suffix = group.decay ? "decayed" : "not decayed";
    memory.add(MemoryCategory::parameters, "weights, " + suffix, DType::f32, {group.elements}, group.value);
    if (!training) continue;
    memory.add(MemoryCategory::gradients, "gradients, " + suffix, DType::f32, {group.elements}, group.grad);
    memory.add(MemoryCategory::optimizer, "adam m, " + suffix, DType::f32, {group.elements}, group.m);
    memory.add(MemoryCategory::optimizer, "adam v, " + suffix, DType::f32, {group.elements}, group.v);
  }
}

void ParameterSet::bind() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [group, offset] = placements_[i];
    parameters_[i].value.data = groups_[group].value.as<float>() + offset;
    if (!groups_[group].grad) continue;
    parameters_[i].grad.data = groups_[group].grad.as<float>() + offset;
    parameters_[i].m.data = groups_[group].m.as<float>() + offset;
    parameters_[i].v.data = groups_[group].v.as<float>() + offset;
  }
}

void ParameterSet::initialize(Device& device, std::uint64_t seed) {
  for (const Group& group : groups_) device.set_zero(group.value.data, group.value.bytes());
  for (const StoredTensor& tensor : stored_)
    write_pieces(device, tensor, Kind::value, [&](std::int64_t first, std::span<float> elements) {
      initial_values(tensor, seed, first, elements);
    });
}

const Parameter& ParameterSet::at(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) throw std::logic_error("the model has no parameter " + name);
  return parameters_[found->second];
}

const Tensor& ParameterSet::base_of(const StoredTensor& tensor, Kind kind) {
  switch (kind) {
    case Kind::value: return tensor.parameter->value;
    case Kind::grad: return tensor.parameter->grad;
    case Kind::m: return tensor.parameter->m;
    case Kind::v: return tensor.parameter->v;
  }
  throw std::logic_error("ParameterSet: unknown kind of tensor");
}

void ParameterSet::read_pieces(Device& device, const StoredTensor& tensor, Kind kind,
                               const std::function<void(std::span<const float>)>& visit) const {
  const float* base = base_of(tensor, kind).as<float>();
  std::vector<float> piece;
  for_each_run(tensor, [&](std::int64_t, std::int64_t count, std::int64_t offset) {
    piece.resize(static_cast<std::size_t>(count));
    device.download(piece.data(), base + offset, piece.size() * sizeof(float));
    visit(piece);
  });
}

void ParameterSet::write_pieces(Device& device, const StoredTensor& tensor, Kind kind,
                                const std::function<void(std::int64_t, std::span<float>)>& fill) const {
  float* base = base_of(tensor, kind).as<float>();
  std::vector<float> piece;
  for_each_run(tensor, [&](std::int64_t first, std::int64_t count, std::int64_t offset) {
    piece.resize(static_cast<std::size_t>(count));
    fill(first, piece);
    device.upload(base + offset, piece.data(), piece.size() * sizeof(float));
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

void ParameterSet::zero_gradients(Device& device) const {
  for (const Group& group : groups_) device.set_zero(group.grad.data, group.grad.bytes());
}

}  // namespace goat
