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

constexpr std::int64_t run_elements = 1 << 20;

// Calls visit(first, count, offset) for every run of consecutive elements. The `count` elements from
// row-major index `first` on are at `offset` inside the parameter. A run has at most run_elements elements.
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
    for (std::int64_t done = 0; done < length; done += run_elements)
      visit(first + done, std::min(run_elements, length - done), offset + done);
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
                                 Initial initial, float lr_scale) {
  Parameter& parameter = declare_packed(name, shape, role, lr_scale);
  store(parameter, name, std::move(shape), parameter.value, 0, std::move(initial));
  return parameter;
}

Parameter& ParameterSet::declare_packed(const std::string& name, const std::vector<std::int64_t>& shape,
                                        ParameterRole role, float lr_scale) {
  if (!by_name_.emplace(name, parameters_.size()).second)
    throw std::logic_error("parameter declared twice: " + name);
  Parameter& parameter = parameters_.emplace_back();
  parameter.name = name;
  const std::size_t index = group_of(role, lr_scale);
  parameter.value = shaped(shape, groups_[index].dtype, parameter.name.c_str());
  parameter.grad = shaped(shape, DType::f32, parameter.name.c_str());
  placements_.push_back({index, 0});
  return parameter;
}

std::size_t ParameterSet::group_of(ParameterRole role, float lr_scale) {
  const bool own_kernel = role == ParameterRole::vector || role == ParameterRole::gate;
  const DType dtype = own_kernel ? DType::f32 : dtype_;
  const bool decay = role == ParameterRole::matrix || role == ParameterRole::gate;
  const auto found = std::ranges::find_if(groups_, [&](const Group& group) {
    return group.dtype == dtype && group.decay == decay && group.lr_scale == lr_scale;
  });
  const auto index = static_cast<std::size_t>(found - groups_.begin());
  if (found == groups_.end()) groups_.push_back({.dtype = dtype, .decay = decay, .lr_scale = lr_scale});
  return index;
}

void ParameterSet::store(const Parameter& parameter, const std::string& name, std::vector<std::int64_t> shape,
                         const Tensor& layout, std::int64_t offset, Initial initial) {
  stored_.push_back({name, std::move(shape), layout, offset, &parameter, std::move(initial)});
}

void ParameterSet::place() {
  for (std::size_t unit = unit_starts_.size(); unit-- > 0;) {
    const std::size_t end = unit + 1 < unit_starts_.size() ? unit_starts_[unit + 1] : placements_.size();
    for (std::size_t i = unit_starts_[unit]; i < end; ++i) {
      Group& group = groups_[placements_[i].group];
      placements_[i].offset = group.elements;
      group.elements += (parameters_[i].value.elements() + alignment - 1) / alignment * alignment;
    }
  }
}

std::size_t ParameterSet::unit_of_parameter(std::size_t index) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(unit_starts_, index) - unit_starts_.begin()) - 1;
}

// Units lie in the order of backward: of those that reach into a bucket, the first is the one that ends last.
std::vector<std::size_t> ParameterSet::first_units_of(std::size_t group) const {
  std::vector<std::size_t> units;
  for (const Bucket& bucket : groups_[group].buckets) {
    const std::int64_t end = bucket.first + ranks_ * bucket.piece_elements;
    std::size_t first = unit_starts_.size() - 1;
    for (std::size_t i = placements_.size(); i-- > 0;)
      if (placements_[i].group == group && placements_[i].offset < end)
        first = std::min(first, unit_of_parameter(i));
    units.push_back(first);
  }
  return units;
}

void ParameterSet::plan_group(MemoryPlan& memory, bool training, const Sharding& sharding,
                              Group& group) const {
  group.buckets = buckets_of(group.elements, sharding);
  group.pieces = pieces_of(group.buckets, sharding.piece());
  const std::int64_t all = padded_elements(group.elements, sharding.size), shard = all / sharding.size;
  const std::string suffix = (group.dtype == dtype_ ? "" : std::string(name_of(group.dtype)) + " ") +
                             (group.decay ? "decayed" : "not decayed") +
                             (group.lr_scale != 1 ? ", own learning rate" : "");
  const auto add = [&](MemoryCategory category, const char* what, DType dtype, std::int64_t elements,
                       Tensor& view) {
    memory.add(category, what + (", " + suffix), dtype, {elements}, view);
  };
  add(MemoryCategory::parameters, "weights", group.dtype, all, group.value);
  if (!training) return;
  if (group.dtype != DType::f32)
    add(MemoryCategory::optimizer, "master weights", DType::f32, shard, group.master);
  add(MemoryCategory::gradients, "gradients", DType::f32, all, group.grad);
  add(MemoryCategory::optimizer, "adam m", DType::f32, shard, group.m);
  add(MemoryCategory::optimizer, "adam v", DType::f32, shard, group.v);
}

void ParameterSet::plan(MemoryPlan& memory, bool training, const Sharding& sharding) {
  place();
  ranks_ = sharding.size;
  std::int64_t elements = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].first_element = std::exchange(elements, elements + groups_[g].elements);
    plan_group(memory, training, sharding, groups_[g]);
    groups_[g].first_units = first_units_of(g);
  }
}

void ParameterSet::bind() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Group& group = groups_[placements_[i].group];
    const std::int64_t offset = placements_[i].offset;
    parameters_[i].value.data = element_of(group.value, offset);
    parameters_[i].grad.data = group.grad ? element_of(group.grad, offset) : nullptr;
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

const ParameterSet::Placement& ParameterSet::placement_of(const StoredTensor& tensor) const {
  return placements_[by_name_.at(tensor.parameter->name)];
}

// Calls visit(first, run) for the parts of the tensor's runs that lie in this rank's pieces.
template <class Visit>
void ParameterSet::for_each_owned_run(const StoredTensor& tensor, Visit visit) const {
  const Placement& placement = placement_of(tensor);
  for_each_run(tensor, [&](std::int64_t first, std::int64_t count, std::int64_t offset) {
    const std::int64_t begin = placement.offset + offset;
    for (const Piece& piece : groups_[placement.group].pieces) {
      const std::int64_t from = std::max(begin, piece.first),
                         end = std::min(begin + count, piece.first + piece.elements);
      if (from < end)
        visit(first + from - begin, Piece{from, end - from, piece.shard_first + from - piece.first});
    }
  });
}

namespace {
// A place in an array.
struct Place {
  const Tensor& array;
  std::int64_t offset;
};

Place place_of(const ParameterSet::Group& group, ParameterSet::Kind kind, const Piece& run) {
  switch (kind) {
    case ParameterSet::Kind::value:
      return group.master ? Place{group.master, run.shard_first} : Place{group.value, run.first};
    case ParameterSet::Kind::grad: return {group.grad, run.first};
    case ParameterSet::Kind::m: return {group.m, run.shard_first};
    case ParameterSet::Kind::v: return {group.v, run.shard_first};
  }
  throw std::logic_error("ParameterSet: unknown kind of tensor");
}
}  // namespace

void ParameterSet::read_pieces(Device& device, const StoredTensor& tensor, Kind kind,
                               const std::function<void(std::int64_t, std::span<const float>)>& visit) const {
  const Group& group = groups_[placement_of(tensor).group];
  std::vector<float> elements;
  for_each_owned_run(tensor, [&](std::int64_t first, const Piece& run) {
    elements.resize(static_cast<std::size_t>(run.elements));
    const auto [array, offset] = place_of(group, kind, run);
    download_floats(device, elements, array, offset);
    visit(first, elements);
  });
}

void ParameterSet::write_pieces(Device& device, const StoredTensor& tensor, Kind kind,
                                const std::function<void(std::int64_t, std::span<float>)>& fill) const {
  const Group& group = groups_[placement_of(tensor).group];
  std::vector<float> elements;
  for_each_owned_run(tensor, [&](std::int64_t first, const Piece& run) {
    elements.resize(static_cast<std::size_t>(run.elements));
    fill(first, elements);
    const auto [array, offset] = place_of(group, kind, run);
    upload_floats(device, array, offset, elements);
    if (kind == Kind::value && group.master) upload_floats(device, group.value, run.first, elements);
  });
}

std::vector<float> ParameterSet::read(Device& device, const StoredTensor& tensor, Kind kind) const {
  require_unshared();
  std::vector<float> values;
  values.reserve(static_cast<std::size_t>(tensor.layout.elements()));
  read_pieces(device, tensor, kind, [&](std::int64_t, std::span<const float> elements) {
    values.insert(values.end(), elements.begin(), elements.end());
  });
  return values;
}

void ParameterSet::write(Device& device, const StoredTensor& tensor, const std::vector<float>& values,
                         Kind kind) const {
  require_unshared();
  if (values.size() != static_cast<std::size_t>(tensor.layout.elements()))
    throw std::logic_error(tensor.name + ": wrong number of values");
  write_pieces(device, tensor, kind, [&](std::int64_t first, std::span<float> piece) {
    std::copy_n(values.begin() + first, piece.size(), piece.begin());
  });
}

void ParameterSet::round_masters(Device& device, Rounding rounding, std::uint64_t seed,
                                 std::int64_t update) const {
  if (update == 0) return;
  std::vector<float> masters;
  for (const Group& group : groups_) {
    if (!group.master) continue;
    for (const Piece& piece : group.pieces)
      for (std::int64_t done = 0; done < piece.elements; done += run_elements) {
        masters.resize(static_cast<std::size_t>(std::min(run_elements, piece.elements - done)));
        download_floats(device, masters, group.master, piece.shard_first + done);
        if (rounding == Rounding::stochastic)
          round_stochastically(masters, group.first_element + piece.first + done, seed, update);
        upload_floats(device, group.value, piece.first + done, masters);
      }
  }
}

void ParameterSet::require_unshared() const {
  if (ranks_ > 1) throw std::logic_error("ParameterSet: this rank has only its pieces of the tensor");
}

void ParameterSet::zero_gradients(Device& device) const {
  for (const Group& group : groups_) device.set_zero(group.grad.data, group.grad.bytes());
}

}  // namespace goat
