// Collectives of a warp: shuffles, votes, reductions. All lanes that a mask names wait for each other. The
// last lane to arrive executes the operation for all.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <cstring>

namespace goat::on_simt {

constexpr int warpSize = 32;

// Executes the operation for the lanes of `mask`. argument[lane] is the argument that this lane passed.
using Collective = void (*)(void** argument, std::uint32_t mask);
void collective(std::uint32_t mask, Collective operation, void* argument, int line);

struct Shuffle {
  std::uint64_t bits;
  std::uint64_t received;
  int parameter;  // lane, lane mask or distance
  int width;
};
void shuffle_indexed(void** argument, std::uint32_t mask);
void shuffle_xor(void** argument, std::uint32_t mask);
void shuffle_down(void** argument, std::uint32_t mask);
void shuffle_up(void** argument, std::uint32_t mask);
[[noreturn]] void bad_shuffle_width(int width);

template <class T>
__attribute__((always_inline)) inline T shuffle(Collective operation, unsigned mask, T value, int parameter,
                                                int width, int line) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  if (width < 1 || width > 32 || (width & (width - 1)) != 0) [[unlikely]]
    bad_shuffle_width(width);
  Shuffle exchange{0, 0, parameter, width};
  std::memcpy(&exchange.bits, &value, sizeof value);
  collective(mask, operation, &exchange, line);
  std::memcpy(static_cast<void*>(&value), &exchange.received, sizeof value);
  return value;
}

struct Ballot {
  std::uint32_t vote, result;
};
void ballot(void** argument, std::uint32_t mask);

struct LaneValue {
  std::uint32_t value, result;
};
void match_any(void** argument, std::uint32_t mask);

void synchronize_lanes(void** argument, std::uint32_t mask);

#define GOAT_SIMT_LINE int line = __builtin_LINE()
#define GOAT_SIMT_INLINE __attribute__((always_inline)) inline

GOAT_SIMT_INLINE void __syncwarp(unsigned mask = 0xFFFFFFFFu, GOAT_SIMT_LINE) {
  collective(mask, synchronize_lanes, nullptr, line);
}

template <class T>
GOAT_SIMT_INLINE T __shfl_sync(unsigned mask, T value, int lane, int width = 32, GOAT_SIMT_LINE) {
  return shuffle(shuffle_indexed, mask, value, lane, width, line);
}
template <class T>
GOAT_SIMT_INLINE T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, GOAT_SIMT_LINE) {
  return shuffle(shuffle_xor, mask, value, lane_mask, width, line);
}
template <class T>
GOAT_SIMT_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32,
                                    GOAT_SIMT_LINE) {
  return shuffle(shuffle_down, mask, value, static_cast<int>(distance), width, line);
}
template <class T>
GOAT_SIMT_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32, GOAT_SIMT_LINE) {
  return shuffle(shuffle_up, mask, value, static_cast<int>(distance), width, line);
}

GOAT_SIMT_INLINE unsigned __ballot_sync(unsigned mask, int predicate, GOAT_SIMT_LINE) {
  Ballot vote{predicate != 0, 0};
  collective(mask, ballot, &vote, line);
  return vote.result;
}
GOAT_SIMT_INLINE int __any_sync(unsigned mask, int predicate, GOAT_SIMT_LINE) {
  return __ballot_sync(mask, predicate, line) != 0;
}
GOAT_SIMT_INLINE int __all_sync(unsigned mask, int predicate, GOAT_SIMT_LINE) {
  return __ballot_sync(mask, predicate, line) == mask;
}

// The mask of the lanes that hold the same 32-bit value.
template <class T>
GOAT_SIMT_INLINE unsigned __match_any_sync(unsigned mask, T value, GOAT_SIMT_LINE) {
  static_assert(sizeof(T) == 4);
  LaneValue exchange{std::bit_cast<std::uint32_t>(value), 0};
  collective(mask, match_any, &exchange, line);
  return exchange.result;
}

// ---- reductions of 32-bit integers (sm_80)

template <class T, class Combine>
void reduce_lanes(void** argument, std::uint32_t mask) {
  T total{};
  bool first = true;
  for (std::uint32_t rest = mask; rest; rest &= rest - 1) {
    const T value = std::bit_cast<T>(static_cast<const LaneValue*>(argument[std::countr_zero(rest)])->value);
    total = first ? value : Combine{}(total, value);
    first = false;
  }
  for (std::uint32_t rest = mask; rest; rest &= rest - 1)
    static_cast<LaneValue*>(argument[std::countr_zero(rest)])->result = std::bit_cast<std::uint32_t>(total);
}
template <class Combine, class T>
GOAT_SIMT_INLINE T reduce(unsigned mask, T value, int line) {
  static_assert(sizeof(T) == 4);
  LaneValue exchange{std::bit_cast<std::uint32_t>(value), 0};
  collective(mask, reduce_lanes<T, Combine>, &exchange, line);
  return std::bit_cast<T>(exchange.result);
}
struct Add {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
};
struct Least {
  template <class T>
  T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct Largest {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
GOAT_SIMT_INLINE int __reduce_add_sync(unsigned mask, int value, GOAT_SIMT_LINE) {
  return reduce<Add>(mask, value, line);
}
GOAT_SIMT_INLINE unsigned __reduce_add_sync(unsigned mask, unsigned value, GOAT_SIMT_LINE) {
  return reduce<Add>(mask, value, line);
}
GOAT_SIMT_INLINE int __reduce_min_sync(unsigned mask, int value, GOAT_SIMT_LINE) {
  return reduce<Least>(mask, value, line);
}
GOAT_SIMT_INLINE unsigned __reduce_min_sync(unsigned mask, unsigned value, GOAT_SIMT_LINE) {
  return reduce<Least>(mask, value, line);
}
GOAT_SIMT_INLINE int __reduce_max_sync(unsigned mask, int value, GOAT_SIMT_LINE) {
  return reduce<Largest>(mask, value, line);
}
GOAT_SIMT_INLINE unsigned __reduce_max_sync(unsigned mask, unsigned value, GOAT_SIMT_LINE) {
  return reduce<Largest>(mask, value, line);
}

}  // namespace goat::on_simt
