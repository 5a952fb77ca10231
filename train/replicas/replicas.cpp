#include "train/replicas/replicas.h"

#include <algorithm>
#include <array>

#include "train/memory/float_copies.h"

namespace goat {

namespace {
std::int64_t chunks_of(std::int64_t elements) { return (elements + chunk_elements - 1) / chunk_elements; }
}  // namespace

static_assert(SquaredSums::chunk == chunk_elements);

Replicas::Replicas(const ParameterSet& parameters, const Sharding& sharding, std::int64_t leaves)
    : parameters_(parameters), sharding_(sharding), tree_(leaves / sharding.size) {}

std::int64_t Replicas::columns() const {
  std::int64_t columns = flags + own_leaves();
  for (const auto& group : parameters_.groups())
    for (const Piece& piece : group.pieces) columns += chunks_of(piece.elements);
  return columns;
}

void Replicas::plan(MemoryPlan& memory) {
  tree_.plan(memory, parameters_);
  memory.add(MemoryCategory::optimizer, "loss of a leaf", DType::f64, {1}, loss_);
  memory.add(MemoryCategory::optimizer, "reports of the ranks", DType::f64, {sharding_.size, columns()},
             reports_);
  if (sharding_.size == 1) return;
  std::int64_t largest = 0;
  for (const auto& group : parameters_.groups())
    for (const Bucket& bucket : group.buckets) largest = std::max(largest, bucket.piece_elements);
  memory.add(MemoryCategory::gradients, "gradients from all ranks", DType::f32, {sharding_.size * largest},
             parts_);
}

void Replicas::begin_leaf(Device& device) const {
  parameters_.zero_gradients(device);
  device.set_zero(loss_.data, loss_.bytes());
}

void Replicas::end_leaf(Device& device, std::int64_t leaf) const {
  device.copy(own_row().as<double>() + flags + leaf, loss_.data, loss_.bytes());
  tree_.add(device, parameters_, leaf);
}

void Replicas::add_gradients(Device& device, Communicator& communicator) const {
  if (sharding_.size == 1) return;
  for (const auto& group : parameters_.groups())
    for (std::size_t b = 0; b < group.buckets.size(); ++b) {
      const auto [first, elements] = group.buckets[b];
      communicator.all_to_all(device, parts_.data, element_of(group.grad, first),
                              static_cast<std::size_t>(elements) * sizeof(float));
      device.run(SumParts{.out = group.grad.slice(0, group.pieces[b].first, elements),
                          .parts = Tensor::contiguous(parts_.data, DType::f32, {sharding_.size, elements},
                                                      "parts of the ranks")});
    }
}

// Sums the squares of this rank's chunks, and says where those of all ranks will be. Chunks are numbered
// without the padding of the arrays, which depends on the number of ranks.
std::vector<ChunkSums> Replicas::sum_squares(Device& device) const {
  std::vector<ChunkSums> sums;
  std::int64_t column = flags + own_leaves(), before = 0;
  for (const auto& group : parameters_.groups()) {
    for (std::size_t b = 0; b < group.pieces.size(); ++b) {
      const Piece& piece = group.pieces[b];
      const std::int64_t chunks = chunks_of(piece.elements);
      device.run(SquaredSums{.sums = own_row().slice(0, column, chunks),
                             .x = group.grad.slice(0, piece.first, piece.elements)});
      sums.push_back({.sums = reports_.slice(1, column, chunks),
                      .first = before + group.buckets[b].first / chunk_elements});
      column += chunks;
    }
    before += chunks_of(group.elements);
  }
  return sums;
}

void Replicas::judge(Device& device, Communicator& communicator, StepState* state, float clip) const {
  add_gradients(device, communicator);
  const std::vector<ChunkSums> squares = sum_squares(device);
  if (sharding_.size > 1) communicator.all_gather(device, reports_.data, own_row().data, own_row().bytes());
  device.run(StepVerdict{.state = state,
                         .losses = reports_.slice(1, flags, own_leaves()),
                         .squares = squares,
                         .clip = clip,
                         .flags = reports_.slice(1, 0, flags)});
}

void Replicas::gather_weights(Device& device, Communicator& communicator) const {
  if (sharding_.size == 1) return;
  for (const auto& group : parameters_.groups())
    for (std::size_t b = 0; b < group.buckets.size(); ++b) {
      const Tensor piece = group.value.slice(0, group.pieces[b].first, group.pieces[b].elements);
      communicator.all_gather(device, element_of(group.value, group.buckets[b].first), piece.data,
                              piece.bytes());
    }
}

}  // namespace goat
