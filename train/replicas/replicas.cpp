#include "train/replicas/replicas.h"

#include <algorithm>
#include <ranges>

namespace goat {

namespace {
std::int64_t chunks_of(std::int64_t elements) { return (elements + chunk_elements - 1) / chunk_elements; }
}  // namespace

static_assert(SquaredSums::chunk == chunk_elements);

Replicas::Replicas(const ParameterSet& parameters, const Sharding& sharding, std::int64_t leaves,
                   const ExchangeOptions& options)
    : parameters_(parameters),
      sharding_(sharding),
      overlap_(options.overlap),
      tree_(leaves / sharding.size),
      exchange_(sharding, options) {}

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
  std::int64_t largest = 0;
  const auto& groups = parameters_.groups();
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::size_t b = 0; b < groups[g].buckets.size(); ++b) {
      places_.push_back({g, b, groups[g].first_units[b]});
      largest = std::max(largest, sharding_.size * groups[g].buckets[b].piece_elements);
    }
  std::ranges::stable_sort(places_, {}, &Place::first_unit);
  if (sharding_.size > 1) exchange_.plan(memory, largest);
}

void Replicas::connect(Device& device, Communicators& ranks) {
  device_ = &device;
  exchange_.connect(device, ranks);
  arrivals_ = std::vector<Arrival>(places_.size());
  for (Arrival& arrival : arrivals_) arrival.event = device.make_event();
}

void Replicas::begin_leaf() const {
  parameters_.zero_gradients(*device_);
  device_->set_zero(loss_.data, loss_.bytes());
}

void Replicas::end_leaf(std::int64_t leaf) const {
  device_->copy(own_row().as<double>() + flags + leaf, loss_.data, loss_.bytes());
  if (leaf + 1 < own_leaves()) return tree_.add(*device_, parameters_, leaf);
  if (exchanges_in_pass()) return;
  for (std::size_t unit = parameters_.units(); unit-- > 0;) send_gradients_of(unit);
}

// With unit 0 all are on their way. What is enqueued then may read their sum.
void Replicas::send_gradients_of(std::size_t unit) const {
  const auto first = std::ranges::lower_bound(places_, unit, {}, &Place::first_unit);
  for (auto place = first; place != places_.end() && place->first_unit == unit; ++place)
    send_gradients(*place);
  if (unit == 0) exchange_.lead_device();
}

void Replicas::send_gradients(const Place& place) const {
  const auto& group = parameters_.groups()[place.group];
  const Bucket& bucket = group.buckets[place.bucket];
  tree_.finish(*device_, parameters_, place.group, bucket.first, sharding_.size * bucket.piece_elements);
  if (sharding_.size == 1) return;
  exchange_.follow_device();
  exchange_.sum(group.grad, bucket);
}

// Sums the squares of this rank's chunks, and says where those of all ranks will be. Chunks are numbered
// without the padding of the arrays, which depends on the number of ranks.
std::vector<ChunkSums> Replicas::sum_squares() const {
  std::vector<ChunkSums> sums;
  std::int64_t column = flags + own_leaves(), before = 0;
  for (const auto& group : parameters_.groups()) {
    for (std::size_t b = 0; b < group.pieces.size(); ++b) {
      const Piece& piece = group.pieces[b];
      const std::int64_t chunks = chunks_of(piece.elements);
      device_->run(SquaredSums{.sums = own_row().slice(0, column, chunks),
                               .x = group.grad.slice(0, piece.first, piece.elements)});
      sums.push_back({.sums = reports_.slice(1, column, chunks),
                      .first = before + group.buckets[b].first / chunk_elements});
      column += chunks;
    }
    before += chunks_of(group.elements);
  }
  return sums;
}

void Replicas::judge(StepState* state, float clip) const {
  const std::vector<ChunkSums> squares = sum_squares();
  if (sharding_.size > 1) {
    exchange_.follow_device();
    exchange_.gather_rows(reports_);
    exchange_.lead_device();
  }
  device_->run(StepVerdict{.state = state,
                           .losses = reports_.slice(1, flags, own_leaves()),
                           .squares = squares,
                           .clip = clip,
                           .flags = reports_.slice(1, 0, flags),
                           .nodes = sharding_.nodes});
}

void Replicas::gather_weights_of(std::size_t place) {
  if (sharding_.size == 1) return;
  const auto& group = parameters_.groups()[places_[place].group];
  exchange_.follow_device();
  exchange_.gather(group.value, group.buckets[places_[place].bucket]);
  exchange_.stream().record(*arrivals_[place].event);
  arrivals_[place].awaited = false;
}

void Replicas::gather_weights() {
  for (std::size_t place = 0; place < places_.size(); ++place) gather_weights_of(place);
}

void Replicas::await(std::size_t place) {
  if (arrivals_[place].awaited) return;
  device_->follow(*arrivals_[place].event);
  arrivals_[place].awaited = true;
}

void Replicas::await_weights_of(std::size_t unit) {
  for (std::size_t place = 0; place < places_.size(); ++place)
    if (places_[place].first_unit == unit) await(place);
}

void Replicas::await_weights() {
  for (std::size_t place = 0; place < places_.size(); ++place) await(place);
}

}  // namespace goat
