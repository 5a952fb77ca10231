#include "train/replicas/exchange.h"

#include "train/memory/float_copies.h"

namespace goat {

Communicators unconnected(const Sharding& sharding) {
  Communicators ranks{unconnected_rank(sharding.rank, sharding.size)};
  if (sharding.nodes == 1) return ranks;
  ranks.node = unconnected_rank(sharding.place_on_node(), sharding.size / sharding.nodes);
  ranks.across = unconnected_rank(sharding.node(), sharding.nodes);
  return ranks;
}

void Exchange::plan(MemoryPlan& memory, std::int64_t largest_bucket) {
  memory.add(MemoryCategory::gradients, "gradients from all ranks", options_.wire, {largest_bucket}, parts_);
  if (options_.wire != DType::f32)
    memory.add(MemoryCategory::gradients, "gradients to all ranks", options_.wire, {largest_bucket}, sent_);
}

void Exchange::connect(Device& device, Communicators& ranks) {
  device_ = &device;
  ranks_ = &ranks;
  own_stream_ = options_.overlap && !device.completes_at_once() ? device.open_stream() : nullptr;
  stream_ = own_stream_ ? own_stream_.get() : &device;
  device_reached_ = device.make_event();
  stream_reached_ = device.make_event();
}

void Exchange::follow_device() const {
  if (!own_stream_) return;
  device_->record(*device_reached_);
  stream_->follow(*device_reached_);
}

void Exchange::lead_device() const {
  if (!own_stream_) return;
  stream_->record(*stream_reached_);
  device_->follow(*stream_reached_);
}

// Of the pieces that the ranks of this place own, which lie together.
std::int64_t Exchange::first_of_place(const Bucket& bucket) const {
  return bucket.first + sharding_.place_on_node() * sharding_.nodes * bucket.piece_elements;
}

// `gradients`, rounded to the wire's dtype.
Tensor Exchange::as_sent(const Tensor& gradients) const {
  if (!sent_) return gradients;
  const Tensor rounded = sent_.slice(0, 0, gradients.elements());
  stream_->run(Cast{.out = rounded, .x = gradients});
  return rounded;
}

Tensor Exchange::received(std::int64_t parts, std::int64_t elements) const {
  return Tensor::contiguous(parts_.data, options_.wire, {parts, elements}, "parts of the ranks");
}

void Exchange::sum(const Tensor& grad, const Bucket& bucket) const {
  const std::int64_t elements = bucket.piece_elements;
  if (options_.library_adds) return add_by_library(grad, bucket);
  if (sharding_.nodes == 1) return add(*ranks_->world, grad, bucket.first, elements);
  add(*ranks_->node, grad, bucket.first, sharding_.nodes * elements);
  add(*ranks_->across, grad, first_of_place(bucket), elements);
}

// The ranks have a part of `elements` each, from `first` on.
void Exchange::add(Communicator& ranks, const Tensor& grad, std::int64_t first, std::int64_t elements) const {
  const Tensor all = grad.slice(0, first, ranks.size() * elements), parts = received(ranks.size(), elements);
  ranks.all_to_all(*stream_, parts.data, as_sent(all).data,
                   static_cast<std::size_t>(elements) * size_of(options_.wire));
  stream_->run(SumParts{.out = all.slice(0, ranks.rank() * elements, elements), .parts = parts});
}

void Exchange::add_by_library(const Tensor& grad, const Bucket& bucket) const {
  Communicator& ranks = *ranks_->world;
  const std::int64_t elements = bucket.piece_elements;
  const Tensor all = grad.slice(0, bucket.first, ranks.size() * elements), sum = received(1, elements);
  ranks.reduce_scatter(*stream_, sum.data, as_sent(all).data, static_cast<std::size_t>(elements),
                       options_.wire);
  stream_->run(SumParts{.out = all.slice(0, ranks.rank() * elements, elements), .parts = sum});
}

// First over the network, then inside each node.
void Exchange::gather(const Tensor& value, const Bucket& bucket) const {
  const std::int64_t elements = bucket.piece_elements;
  if (sharding_.nodes == 1) return gather(*ranks_->world, value, bucket.first, elements);
  gather(*ranks_->across, value, first_of_place(bucket), elements);
  gather(*ranks_->node, value, bucket.first, sharding_.nodes * elements);
}

void Exchange::gather(Communicator& ranks, const Tensor& value, std::int64_t first,
                      std::int64_t elements) const {
  const Tensor own = value.slice(0, first + ranks.rank() * elements, elements);
  ranks.all_gather(*stream_, element_of(value, first), own.data, own.bytes());
}

void Exchange::gather_rows(const Tensor& table) const {
  const Tensor own = table.select(0, sharding_.rank);
  ranks_->world->all_gather(*stream_, table.data, own.data, own.bytes());
}

}  // namespace goat
