#include "train/parameters.h"

#include <stdexcept>

#include "data/philox.h"

namespace goat {

namespace {
constexpr std::int64_t alignment = 64;  // elements; keeps every parameter on its own 256-byte line

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

// FNV-1a: a fixed 64-bit name for the random stream of a tensor.
std::uint64_t hash_of(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const unsigned char c : name) hash = (hash ^ c) * 0x100000001b3u;
  return hash;
}

// Calls visit(element offset inside the base) for every element of a strided layout, row-major.
template <class Visit>
void for_each_offset(const Tensor& layout, Visit visit) {
  std::array<std::int64_t, Tensor::max_rank> index{};
  for (std::int64_t n = 0; n < layout.elements(); ++n) {
    std::int64_t offset = 0;
    for (int dim = 0; dim < layout.rank; ++dim) offset += index[dim] * layout.stride[dim];
    visit(offset);
    for (int dim = layout.rank - 1; dim >= 0 && ++index[dim] == layout.shape[dim]; --dim) index[dim] = 0;
  }
}

std::vector<float> initial_values(const StoredTensor& tensor, std::uint64_t seed) {
  const auto count = static_cast<std::size_t>(tensor.layout.elements());
  std::vector<float> values(count, static_cast<float>(tensor.initial.constant));
  if (!tensor.initial.values.empty()) {
    if (tensor.initial.values.size() != count) throw std::logic_error(tensor.name + ": wrong number of initial values");
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(tensor.initial.values[i]);
  }
  if (tensor.initial.std == 0) return values;
  const std::uint64_t item = hash_of(tensor.name);
  for (std::size_t i = 0; i < count; i += 4) {
    const PhiloxBlock bits = philox(seed, RandomStream::init, item, static_cast<std::uint32_t>(i / 4));
    const auto first = normal_pair(bits[0], bits[1]), second = normal_pair(bits[2], bits[3]);
    const double normals[4] = {first[0], first[1], second[0], second[1]};
    for (std::size_t k = 0; k < 4 && i + k < count; ++k) values[i + k] += static_cast<float>(tensor.initial.std * normals[k]);
  }
  return values;
}
}  // namespace

Parameter& ParameterSet::declare(const std::string& name, std::vector<std::int64_t> shape, bool decay, Initial initial) {
  Parameter& parameter = declare_packed(name, shape, decay);
  store(parameter, name, std::move(shape), parameter.value, 0, std::move(initial));
  return parameter;
}

Parameter& ParameterSet::declare_packed(const std::string& name, const std::vector<std::int64_t>& shape, bool decay) {
  if (!by_name_.emplace(name, parameters_.size()).second) throw std::logic_error("parameter declared twice: " + name);
  Parameter& parameter = parameters_.emplace_back();
  parameter.name = name;
  parameter.value = parameter.grad = shaped(shape, parameter.name.c_str());
  const std::size_t group = decay ? 0 : 1;
  placements_.push_back({group, groups_[group].elements});
  groups_[group].elements += (parameter.value.elements() + alignment - 1) / alignment * alignment;
  return parameter;
}

void ParameterSet::store(const Parameter& parameter, const std::string& name, std::vector<std::int64_t> shape, const Tensor& layout,
                         std::int64_t offset, Initial initial) {
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
    if (groups_[group].grad) parameters_[i].grad.data = groups_[group].grad.as<float>() + offset;
  }
}

void ParameterSet::initialize(Device& device, std::uint64_t seed) {
  for (const Group& group : groups_) device.set_zero(group.value.data, group.value.bytes());
  for (const StoredTensor& tensor : stored_) write(device, tensor, initial_values(tensor, seed));
}

const Parameter& ParameterSet::at(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) throw std::logic_error("the model has no parameter " + name);
  return parameters_[found->second];
}

std::vector<float> ParameterSet::read(Device& device, const StoredTensor& tensor) const {
  const Tensor& base = tensor.parameter->value;
  std::vector<float> all(static_cast<std::size_t>(base.elements())), values;
  device.download(all.data(), base.data, base.bytes());
  values.reserve(static_cast<std::size_t>(tensor.layout.elements()));
  for_each_offset(tensor.layout, [&](std::int64_t offset) { values.push_back(all[static_cast<std::size_t>(tensor.offset + offset)]); });
  return values;
}

void ParameterSet::write(Device& device, const StoredTensor& tensor, const std::vector<float>& values) const {
  const Tensor& base = tensor.parameter->value;
  if (values.size() != static_cast<std::size_t>(tensor.layout.elements())) throw std::logic_error(tensor.name + ": wrong number of values");
  std::vector<float> all(static_cast<std::size_t>(base.elements()));
  device.download(all.data(), base.data, base.bytes());
  std::size_t n = 0;
  for_each_offset(tensor.layout, [&](std::int64_t offset) { all[static_cast<std::size_t>(tensor.offset + offset)] = values[n++]; });
  device.upload(base.data, all.data(), base.bytes());
}

void ParameterSet::zero_gradients(Device& device) const {
  for (const Group& group : groups_) device.set_zero(group.grad.data, group.grad.bytes());
}

}  // namespace goat
