// Exchange: how a bucket travels between ranks, on a stream of its own beside that of the passes.
#pragma once

#include <memory>

#include "kernels/communicator.h"
#include "train/memory/memory.h"
#include "train/memory/sharding.h"

namespace goat {

// The communicators of a run.
struct Communicators {
  std::unique_ptr<Communicator> world{};  // of all ranks
  // Of the ranks of this node, and of those of this place on all nodes. Absent unless gradients are added in
  // two levels.
  std::unique_ptr<Communicator> node{}, across{};

  int nodes() const { return across ? across->size() : 1; }
};
Communicators unconnected(const Sharding& sharding);  // for planning what a rank would do

struct ExchangeOptions {
  bool overlap = true;        // while the passes still run; else after them
  bool library_adds = false;  // else SumParts, in a fixed order
  DType wire = DType::f32;    // as which gradients travel, f32 or bf16
};

// With bf16, what a rank sends is rounded to nearest, once for each level, and added in fp32.
class Exchange {
 public:
  // A library that adds knows the nodes by itself: `sharding` has one then.
  Exchange(const Sharding& sharding, const ExchangeOptions& options)
      : sharding_(sharding), options_(options) {}

  // Plans what a bucket needs on its way, of at most so many elements.
  void plan(MemoryPlan& memory, std::int64_t largest_bucket);
  // `device` runs the passes. Both must outlive the exchange.
  void connect(Device& device, Communicators& ranks);
  void disconnect() { stream_ = nullptr; }

  // What is enqueued here runs beside the device's own work, unless it is the device itself.
  Device& stream() const { return *stream_; }
  // What the stream is given from now on follows what the device was given so far, and the reverse.
  void follow_device() const;
  void lead_device() const;

  // Adds the gradients of all ranks into this rank's piece of the bucket. What `grad` holds in the other
  // pieces is undefined then.
  void sum(const Tensor& grad, const Bucket& bucket) const;
  // Brings every rank's piece of the bucket to all.
  void gather(const Tensor& value, const Bucket& bucket) const;
  // Row r of the table comes from rank r.
  void gather_rows(const Tensor& table) const;

 private:
  void add(Communicator& ranks, const Tensor& grad, std::int64_t first, std::int64_t elements) const;
  void add_by_library(const Tensor& grad, const Bucket& bucket) const;
  void gather(Communicator& ranks, const Tensor& value, std::int64_t first, std::int64_t elements) const;
  Tensor as_sent(const Tensor& gradients) const;
  Tensor received(std::int64_t parts, std::int64_t elements) const;
  std::int64_t first_of_place(const Bucket& bucket) const;

  const Sharding sharding_;
  const ExchangeOptions options_;
  Tensor sent_;   // [the largest bucket] in the wire's dtype; absent for f32
  Tensor parts_;  // of all ranks that are added at a time, in the wire's dtype
  Device *device_ = nullptr, *stream_ = nullptr;
  Communicators* ranks_ = nullptr;
  std::unique_ptr<Device> own_stream_;
  std::unique_ptr<DeviceEvent> device_reached_, stream_reached_;
};

}  // namespace goat
