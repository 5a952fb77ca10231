#include "kernels/communicator.h"

#include <cstdint>

namespace goat {

namespace {
[[noreturn]] void refuse(const std::string& call, const std::string& what) {
  throw std::invalid_argument(call + ": " + what);
}

// The bytes of `size` parts.
std::size_t bytes_of_all(const char* call, std::size_t bytes, int size) {
  if (bytes > SIZE_MAX / static_cast<std::size_t>(size))
    refuse(call,
           std::to_string(bytes) + " bytes for each of " + std::to_string(size) + " ranks are too many");
  return bytes * static_cast<std::size_t>(size);
}

void require_memory(const char* call, const char* name, const void* memory, std::size_t bytes) {
  if (!memory && bytes > 0) refuse(call, std::string(name) + " is missing");
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(a), second = reinterpret_cast<std::uintptr_t>(b);
  return a_bytes > 0 && b_bytes > 0 && first < second + b_bytes && second < first + a_bytes;
}

class SingleRank final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_to_all(Device& device, void* receive, const void* send, std::size_t bytes) override {
    check_all_to_all(receive, send, bytes, 1);
    if (receive != send) device.copy(receive, send, bytes);
  }
  void all_gather(Device& device, void* receive, const void* send, std::size_t bytes) override {
    check_all_gather(receive, send, bytes, 0, 1);
    if (receive != send) device.copy(receive, send, bytes);
  }
  void broadcast(Device&, void* memory, std::size_t bytes, int root) override {
    check_broadcast(memory, bytes, root, 1);
  }
  std::uint64_t completed() const override { return 0; }
};

class UnconnectedRank final : public Communicator {
 public:
  UnconnectedRank(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_to_all(Device&, void* receive, const void* send, std::size_t bytes) override {
    check_all_to_all(receive, send, bytes, size_);
  }
  void all_gather(Device&, void* receive, const void* send, std::size_t bytes) override {
    check_all_gather(receive, send, bytes, rank_, size_);
  }
  void broadcast(Device&, void* memory, std::size_t bytes, int root) override {
    check_broadcast(memory, bytes, root, size_);
  }
  void reduce_scatter(Device&, void* receive, const void* send, std::size_t elements, DType dtype) override {
    check_reduce_scatter(receive, send, elements, dtype, size_);
  }
  std::uint64_t completed() const override { return 0; }

 private:
  const int rank_, size_;
};
}  // namespace

void check_all_to_all(const void* receive, const void* send, std::size_t bytes, int size) {
  const char* call = "all_to_all";
  const std::size_t all = bytes_of_all(call, bytes, size);
  require_memory(call, "receive", receive, all);
  require_memory(call, "send", send, all);
  if (overlap(receive, all, send, all) && (size > 1 || receive != send))
    refuse(call, "the memory to send overlaps that which receives");
}

void check_all_gather(const void* receive, const void* send, std::size_t bytes, int rank, int size) {
  const char* call = "all_gather";
  const std::size_t all = bytes_of_all(call, bytes, size);
  require_memory(call, "receive", receive, all);
  require_memory(call, "send", send, bytes);
  const auto* own = static_cast<const std::byte*>(receive) + static_cast<std::size_t>(rank) * bytes;
  if (overlap(receive, all, send, bytes) && send != own)
    refuse(call, "the memory to send overlaps that which receives, and is not this rank's part of it");
}

void check_reduce_scatter(const void* receive, const void* send, std::size_t elements, DType dtype,
                          int size) {
  const char* call = "reduce_scatter";
  if (dtype != DType::f32 && dtype != DType::bf16)
    refuse(call, std::string("numbers of ") + name_of(dtype) + ": f32 or bf16 are expected");
  const std::size_t bytes = elements * size_of(dtype), all = bytes_of_all(call, bytes, size);
  require_memory(call, "receive", receive, bytes);
  require_memory(call, "send", send, all);
  if (overlap(receive, bytes, send, all)) refuse(call, "the memory to send overlaps that which receives");
}

void check_broadcast(const void* memory, std::size_t bytes, int root, int size) {
  require_memory("broadcast", "memory", memory, bytes);
  if (root < 0 || root >= size)
    refuse("broadcast", "root " + std::to_string(root) + " is not a rank: there are " + std::to_string(size));
}

void Communicator::reduce_scatter(Device&, void*, const void*, std::size_t, DType) {
  throw std::logic_error("reduce_scatter: this communicator has no library that adds");
}

std::unique_ptr<Communicator> Communicator::split(int, int) {
  throw std::logic_error("split: this communicator cannot be split");
}

std::unique_ptr<Communicator> single_rank() { return std::make_unique<SingleRank>(); }

std::unique_ptr<Communicator> unconnected_rank(int rank, int size) {
  return std::make_unique<UnconnectedRank>(rank, size);
}

}  // namespace goat
