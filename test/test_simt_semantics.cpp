// kernels/simt does what CUDA does: indices, barriers, shuffles, votes, atomics, memory, for every order of
// threads and any number of host threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "test/simulated.h"

using namespace goat::test;

namespace goat::GOAT_TARGET {
namespace {

constexpr unsigned full = 0xFFFFFFFFu;

__global__ void write_indices(int* visits, int3* indices) {
  const int block = static_cast<int>(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
  const int thread = static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
  const int place = block * static_cast<int>(blockDim.x * blockDim.y * blockDim.z) + thread;
  atomicAdd(&visits[place], 1);
  if (thread == 0)
    indices[block] =
        make_int3(static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z));
}

template <class T>
__global__ void shuffles(T* out, int width, int parameter) {
  const int lane = static_cast<int>(threadIdx.x);
  const T value = static_cast<T>(100 + lane);
  out[lane] = __shfl_sync(full, value, parameter, width);
  out[32 + lane] = __shfl_xor_sync(full, value, parameter, width);
  out[64 + lane] = __shfl_up_sync(full, value, static_cast<unsigned>(parameter), width);
  out[96 + lane] = __shfl_down_sync(full, value, static_cast<unsigned>(parameter), width);
}

__global__ void votes(unsigned* out) {
  const unsigned lane = threadIdx.x;
  out[lane] = __ballot_sync(full, lane % 3 == 0);
  if (lane < 8)
    out[32 + lane] = __ballot_sync(0xFFu, lane % 2);  // a group of its own
  else
    out[32 + lane] = __ballot_sync(~0xFFu, lane % 2);
  out[64 + lane] = static_cast<unsigned>(__any_sync(full, lane == 7) * 8 + __any_sync(full, 0) * 4 +
                                         __all_sync(full, 1) * 2 + __all_sync(full, lane != 7));
  out[96 + lane] = __match_any_sync(full, lane / 4);
  out[128 + lane] = __reduce_add_sync(full, lane);
  out[160 + lane] = __reduce_max_sync(full, lane) * 100 + __reduce_min_sync(full, lane + 1);
}

__global__ void barrier_votes(int* out) {
  const int thread = static_cast<int>(threadIdx.x);
  const int count = __syncthreads_count(thread % 5 == 0);
  const int any = __syncthreads_or(thread == 77);
  const int none = __syncthreads_or(0);
  const int all = __syncthreads_and(1);
  const int not_all = __syncthreads_and(thread != 77);
  out[thread] = count * 10000 + any * 1000 + none * 100 + all * 10 + not_all;
}

// A sum over the block by shared memory, many rounds, so that a barrier that lets threads through early
// shows.
__global__ void rounds(int* out, int count) {
  GOAT_SHARED(ring, int[2][256]);
  int* extra = dynamic_shared<int>();
  const unsigned thread = threadIdx.x, neighbour = (threadIdx.x + 37) % blockDim.x;
  ring[0][thread] = static_cast<int>(thread);
  extra[thread] = 0;
  for (int round = 0; round < count; ++round) {
    __syncthreads();
    ring[(round + 1) % 2][thread] = ring[round % 2][neighbour] + 1;
  }
  __syncthreads();
  extra[neighbour] = ring[count % 2][thread];
  __syncthreads();
  out[blockIdx.x * blockDim.x + thread] = extra[thread];
}

__global__ void all_atomics(int* i, unsigned* u, unsigned long long* l, float* f) {
  atomicAdd(&i[0], 2);
  atomicSub(&i[1], 3);
  atomicMax(&i[2], static_cast<int>(threadIdx.x));
  atomicMin(&i[3], -static_cast<int>(threadIdx.x));
  atomicOr(&u[0], 1u << threadIdx.x % 32);
  atomicAnd(&u[1], ~(1u << threadIdx.x % 32));
  atomicXor(&u[2], 1u << threadIdx.x % 32);
  atomicInc(&u[3], 9);
  if (atomicCAS(&u[4], 0u, threadIdx.x + 1) == 0u) atomicAdd(&u[5], 1u);
  atomicAdd(&l[0], 1ull << 33);
  atomicAdd(&f[0], 0.5f);
  if (atomicExch(&u[6], 1u) == 0u) atomicAdd(&u[7], 1u);
}

__global__ void vectors(const uint4* in, uint4* out, const bf16* in_bf16, bf16* out_bf16) {
  const unsigned i = threadIdx.x;
  __stcs(&out[4 * i], __ldcs(&in[i]));
  __stcg(&out[4 * i + 1], __ldcg(&in[i]));
  __stwb(&out[4 * i + 2], __ldg(&in[i]));
  __stwt(&out[4 * i + 3], __ldca(&in[i]));
  __stcs(&out_bf16[i], __ldg(&in_bf16[i]));
}

// Each half of the block meets at a barrier of its own.
__global__ void named_barriers(int* out) {
  GOAT_SHARED(values, int[128]);
  const int thread = static_cast<int>(threadIdx.x), part = thread / 64;
  int sum = 0;
  for (int round = 0; round < 3 + part; ++round) {
    values[thread] = thread + round;
    simulated_named_barrier(1 + part, 64);
    sum += values[part * 64 + (thread + 33) % 64];
    simulated_named_barrier(1 + part, 64);
  }
  out[thread] = sum;
}

__global__ void last_block_sums(const float* in, float* partial, unsigned* ticket, float* out) {
  GOAT_SHARED(is_last, bool);
  float sum = in[blockIdx.x * 32 + threadIdx.x];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(full, sum, offset);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();
    is_last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  float total = 0;
  for (unsigned block = threadIdx.x; block < gridDim.x; block += 32) total += __ldcg(&partial[block]);
  for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(full, total, offset);
  if (threadIdx.x == 0) *out = total;
}

__global__ void intrinsics(float* out) {
  out[0] = __uint_as_float(__byte_perm(0x33221100u, 0x77665544u, 0x5140u));
  out[1] = __fdividef(1.0f, 3.0f) - __frcp_rn(3.0f);
  out[2] = rsqrtf(16.0f) + __expf(0.0f) + __logf(1.0f) + __fmaf_rn(2.0f, 3.0f, 4.0f);
  out[3] = static_cast<float>(__popc(0xF0F0u) + __ffs(8) + __clz(1) + __ffs(0) + __clz(0));
  float sine, cosine;
  __sincosf(1.0f, &sine, &cosine);
  out[4] = sine * sine + cosine * cosine;
  out[5] = static_cast<float>(min(3, 4L) + max(2.5f, 1));
  out[6] = static_cast<float>(__brev(1u) >> 31) + static_cast<float>(__umulhi(0x80000000u, 4u));
  out[7] = __int_as_float(__float_as_int(1.5f));
}

int expected_source(int kind, int lane, int parameter, int width) {
  const int first = lane / width * width;
  int from = lane;
  if (kind == 0) from = first + (parameter & (width - 1));
  if (kind == 1) from = (lane ^ parameter) < first + width ? lane ^ parameter : lane;
  if (kind == 2) from = lane - parameter >= first ? lane - parameter : lane;
  if (kind == 3) from = lane + parameter < first + width ? lane + parameter : lane;
  return from;
}

template <class T>
void check_shuffles() {
  DeviceArray<T> out(128);
  for (int width : {1, 2, 4, 8, 16, 32})
    for (int parameter : {0, 1, 3, 7, 16, 31}) {
      enqueue(shuffles<T>, dim3(1), dim3(32), 0, nullptr, out, width, parameter);
      for (int kind = 0; kind < 4; ++kind)
        for (int lane = 0; lane < 32; ++lane) {
          CAPTURE(width, parameter, kind, lane);
          REQUIRE(static_cast<float>(out[kind * 32 + lane]) ==
                  static_cast<float>(100 + expected_source(kind, lane, parameter, width)));
        }
    }
}

// Runs a test in every order, copy timing and on one and several host threads.
template <class Check>
void for_each_schedule(Check check) {
  ScopedOptions scope;
  for (Order order : {Order::ascending, Order::descending, Order::random})
    for (int threads : {1, 3})
      for (std::uint64_t seed : {1, 2}) {
        if (order != Order::random && seed > 1) continue;
        scope->order = order;
        scope->threads = threads;
        scope->seed = seed;
        CAPTURE(static_cast<int>(order), threads, seed);
        check();
      }
}

}  // namespace
}  // namespace goat::GOAT_TARGET

using namespace goat::GOAT_TARGET;

TEST_CASE("simt: every thread of a 3-D grid of 3-D blocks runs once, with its indices") {
  for_each_schedule([] {
    const dim3 grid(3, 4, 5), block(5, 3, 7);
    DeviceArray<int> visits(std::vector<int>(60 * 105, 0));
    DeviceArray<int3> indices(60);
    enqueue(write_indices, grid, block, 0, nullptr, visits, indices);
    REQUIRE(visits.values() == std::vector<int>(60 * 105, 1));
    std::set<std::tuple<int, int, int>> seen;
    for (const int3& index : indices.values()) seen.insert({index.x, index.y, index.z});
    CHECK(seen.size() == 60);
  });
}

TEST_CASE("simt: shuffles of every kind and width, for values of 2, 4 and 8 bytes") {
  for_each_schedule([] {
    check_shuffles<int>();
    check_shuffles<float>();
    check_shuffles<double>();
    check_shuffles<bf16>();
  });
}

TEST_CASE("simt: ballots, votes, matches and reductions of a warp") {
  for_each_schedule([] {
    DeviceArray<unsigned> out(192);
    enqueue(votes, dim3(1), dim3(32), 0, nullptr, out);
    for (unsigned lane = 0; lane < 32; ++lane) {
      CHECK(out[lane] == 0x49249249u);
      CHECK(out[32 + lane] == (lane < 8 ? 0xAAu : 0xAAAAAA00u));
      CHECK(out[64 + lane] == 8 + 2);
      CHECK(out[96 + lane] == 0xFu << lane / 4 * 4);
      CHECK(out[128 + lane] == 496);
      CHECK(out[160 + lane] == 3101);
    }
  });
}

TEST_CASE("simt: barriers with predicates count the whole block") {
  for_each_schedule([] {
    DeviceArray<int> out(100);
    enqueue(barrier_votes, dim3(1), dim3(100), 0, nullptr, out);
    CHECK(out.values() == std::vector<int>(100, 201010));
  });
}

TEST_CASE("simt: __syncthreads holds every thread back, in blocks of any size") {
  for_each_schedule([] {
    for (unsigned threads : {1u, 31u, 33u, 100u, 256u}) {
      DeviceArray<int> out(std::size_t{4} * threads);
      enqueue(rounds, dim3(4), dim3(threads), threads * sizeof(int), nullptr, out, 9);
      std::vector<int> want(std::size_t{4} * threads);
      for (unsigned i = 0; i < want.size(); ++i) {
        const unsigned source =
            (i % threads + threads - 37 % threads) % threads;  // who wrote to this thread's extra
        want[i] = static_cast<int>((source + 9 * 37) % threads) + 9;
      }
      CHECK(out.values() == want);
    }
  });
}

TEST_CASE("simt: atomics are atomic across host threads") {
  for_each_schedule([] {
    DeviceArray<int> i(std::vector<int>{0, 0, -1, 1});
    DeviceArray<unsigned> u(std::vector<unsigned>{0, full, 0, 0, 0, 0, 0, 0});
    DeviceArray<unsigned long long> l(std::vector<unsigned long long>{0});
    DeviceArray<float> f(std::vector<float>{0});
    enqueue(all_atomics, dim3(40), dim3(96), 0, nullptr, i, u, l, f);
    CHECK(i.values() == std::vector<int>{7680, -11520, 95, -95});
    CHECK(u[0] == full);
    CHECK(u[1] == 0);
    CHECK(u[2] == 0);
    CHECK(u[3] == 0);  // 3840 steps modulo 10
    CHECK(u[4] != 0);
    CHECK(u[5] == 1);
    CHECK(u[7] == 1);
    CHECK(l[0] == 3840ull << 33);
    CHECK(f[0] == 1920.0f);
  });
}

TEST_CASE("simt: loads and stores with cache hints move vectors and bf16") {
  std::vector<uint4> values(40);
  std::vector<bf16> halves(40);
  for (unsigned i = 0; i < 40; ++i) {
    values[i] = make_uint4(i, i + 1, i + 2, i + 3);
    halves[i] = goat::on_simt::__float2bfloat16(static_cast<float>(i));
  }
  DeviceArray<uint4> in(values), out(160);
  DeviceArray<bf16> in_bf16(halves), out_bf16(40);
  enqueue(vectors, dim3(1), dim3(40), 0, nullptr, in, out, in_bf16, out_bf16);
  for (unsigned i = 0; i < 160; ++i) CHECK((out[i].x == i / 4 && out[i].w == i / 4 + 3));
  for (unsigned i = 0; i < 40; ++i) CHECK(__bfloat162float(out_bf16[i]) == static_cast<float>(i));
}

TEST_CASE("simt: named barriers hold only their own threads") {
  for_each_schedule([] {
    DeviceArray<int> out(128);
    enqueue(named_barriers, dim3(1), dim3(128), 0, nullptr, out);
    for (int thread = 0; thread < 128; ++thread) {
      const int part = thread / 64, source = part * 64 + (thread + 33) % 64;
      CHECK(out[thread] == (3 + part) * source + (part ? 6 : 3));
    }
  });
}

TEST_CASE("simt: the last block sees what all blocks wrote") {
  for_each_schedule([] {
    std::vector<float> values(32 * 50);
    std::iota(values.begin(), values.end(), 0.0f);
    DeviceArray<float> in(values), partial(50), out(1);
    DeviceArray<unsigned> ticket(std::vector<unsigned>{0});
    enqueue(last_block_sums, dim3(50), dim3(32), 0, nullptr, in, partial, ticket, out);
    CHECK(out[0] == 1599.0f * 800.0f);
  });
}

TEST_CASE("simt: intrinsics of one thread") {
  DeviceArray<float> out(8);
  enqueue(intrinsics, dim3(1), dim3(1), 0, nullptr, out);
  CHECK(__float_as_uint(out[0]) == 0x55114400u);
  CHECK(out[1] == 0.0f);
  CHECK(out[2] == 11.25f);
  CHECK(out[3] == 8 + 4 + 31 + 0 + 32);
  CHECK(out[4] == Approx(1.0f));
  CHECK(out[5] == 5.5f);
  CHECK(out[6] == 3.0f);
  CHECK(out[7] == 1.5f);
}

TEST_CASE("simt: conversion to bf16 is that of cuda_bf16.h, bit for bit") {
  std::uint32_t bits = 1;
  for (int i = 0; i < 200000; ++i) {
    bits = bits * 1664525u + 1013904223u;
    for (std::uint32_t pattern : {bits, bits & 0xFFFF8000u, bits | 0x7F800000u, bits & 0x807FFFFFu}) {
      const float value = __uint_as_float(pattern);
      const bf16 ours = goat::on_simt::__float2bfloat16(value), theirs = ::__float2bfloat16(value);
      if (std::memcmp(&ours, &theirs, sizeof ours) != 0) {
        CAPTURE(pattern);
        FAIL("another bf16");
      }
    }
  }
}

TEST_CASE("simt: the same seed gives the same schedule, another seed another") {
  ScopedOptions scope;
  scope->order = Order::random;
  const auto switches = [&](std::uint64_t seed) {
    scope->seed = seed;
    reset_counters();
    DeviceArray<int> out(4 * 256);
    enqueue(rounds, dim3(4), dim3(256), 256 * sizeof(int), nullptr, out, 9);
    return counters().switches;
  };
  CHECK(switches(5) == switches(5));
  CHECK(counters().blocks == 4);
  CHECK(counters().barriers == 4 * 11);
}

TEST_CASE("simt: the environment sets the options, and what it does not know is refused") {
  const auto with = [](const char* name, const char* value) {
    const char* old = std::getenv(name);
    const std::string saved = old ? old : "";
    setenv(name, value, 1);
    Options result;
    std::string refused;
    try {
      result = environment_options();
    } catch (const std::runtime_error& error) {
      refused = error.what();
    }
    if (old)
      setenv(name, saved.c_str(), 1);
    else
      unsetenv(name);
    return std::pair(result, refused);
  };
  CHECK(with("GOAT_SIMT_ORDER", "descending").first.order == Order::descending);
  CHECK(with("GOAT_SIMT_COPIES", "early").first.copies == Copies::early);
  CHECK(with("GOAT_SIMT_STREAMS", "urgent_first").first.streams == Streams::urgent_first);
  CHECK(with("GOAT_SIMT_STREAM_RACES", "1").first.stream_races);
  CHECK_FALSE(with("GOAT_SIMT_STREAM_RACES", "0").first.stream_races);
  CHECK(with("GOAT_SIMT_SEED", "77").first.seed == 77);
  CHECK(with("GOAT_SIMT_THREADS", "3").first.threads == 3);
  CHECK(with("GOAT_SIMT_ARCHITECTURE", "86").first.architecture == 86);
  CHECK_THAT(with("GOAT_SIMT_ORDER", "sideways").second, ContainsSubstring("GOAT_SIMT_ORDER is 'sideways'"));
  CHECK_THAT(with("GOAT_SIMT_SEED", "-1").second, ContainsSubstring("GOAT_SIMT_SEED is '-1'"));
  CHECK_THAT(with("GOAT_SIMT_THREADS", "2x").second, ContainsSubstring("whole number"));
}
