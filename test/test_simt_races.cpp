// The race checker (kernels compiled with -fsanitize=thread): each defect is reported with both source lines.
// Builds without it must show the same defects in what the kernels compute, under some schedule, where they
// can.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/ptx.cuh"
#include "test/simulated.h"

using namespace goat::test;

namespace goat::GOAT_TARGET {
namespace {

enum class Race {
  none,
  no_barrier,         // between writing and reading shared memory
  no_second_barrier,  // before shared memory is written again
  no_syncwarp,
  no_copy_wait,
  no_barrier_after_copy,
  blocks_overlap,
  no_fence,
  atomic_and_plain,
};

// out[i] = in of the thread opposite, three times over, through shared memory.
__global__ void exchange(Race race, const float* in, float* out) {
  GOAT_SHARED(tile, float[64]);
  const unsigned thread = threadIdx.x;
  float sum = 0;
  for (int round = 0; round < 3; ++round) {
    MARK(0), tile[thread] = in[blockIdx.x * 64 + thread] + static_cast<float>(round);
    if (race != Race::no_barrier) __syncthreads();
    MARK(1), sum += tile[63 - thread];
    if (race != Race::no_second_barrier) __syncthreads();
  }
  out[blockIdx.x * 64 + thread] = sum;
}

__global__ void exchange_in_warp(Race race, const float* in, float* out) {
  GOAT_SHARED(tile, float[32]);
  const unsigned lane = threadIdx.x;
  MARK(0), tile[lane] = in[lane];
  if (race != Race::no_syncwarp) __syncwarp();
  MARK(1), out[lane] = tile[31 - lane];
}

__global__ void copied(Race race, const float* in, float* out) {
  GOAT_SHARED(tile, float[128]);
  const unsigned thread = threadIdx.x;
  MARK(0), copy_async_16(tile + 4 * thread, in + 4 * thread);
  copy_async_commit();
  if (race != Race::no_copy_wait) copy_async_wait<0>();
  if (race != Race::no_barrier_after_copy) __syncthreads();
  for (unsigned i = thread; i < 128; i += 32) MARK(1), out[i] = tile[127 - i];
  if (race == Race::no_copy_wait) copy_async_wait<0>();  // too late
}

__global__ void overlapping_blocks(Race race, float* out) {
  const unsigned i = blockIdx.x * (race == Race::blocks_overlap ? 31u : 32u) + threadIdx.x;
  MARK(0), out[i] = static_cast<float>(blockIdx.x);
}

__global__ void last_block(Race race, float* partial, unsigned* ticket, float* out) {
  GOAT_SHARED(is_last, bool);
  if (threadIdx.x == 0) {
    MARK(0), partial[blockIdx.x] = 1;
    if (race != Race::no_fence) __threadfence();
    is_last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (is_last && threadIdx.x == 0)
    for (unsigned block = 0; block < gridDim.x; ++block) MARK(1), *out += partial[block];
}

__global__ void counted(Race race, int* count) {
  if (race == Race::atomic_and_plain && threadIdx.x == 40)
    MARK(0), *count += 1;
  else
    MARK(1), atomicAdd(count, 1);
}

__global__ void bytes(unsigned char* out) {
  GOAT_SHARED(flags, unsigned char[64]);
  flags[threadIdx.x] = static_cast<unsigned char>(threadIdx.x);  // neighbours in one cell of the checker
  __syncthreads();
  out[threadIdx.x] = flags[63 - threadIdx.x];
}

std::vector<float> numbers(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
  return values;
}

void check_race(const std::string& report, const std::string& what, bool second_line = true) {
  INFO(report);
  CHECK_THAT(report, ContainsSubstring(what) && ContainsSubstring(marked(0)));
  if (second_line) CHECK_THAT(report, ContainsSubstring(marked(1)));
}

// What `run` returns under every order and copy timing; true if not all are the same.
bool schedules_differ(const std::function<std::vector<float>()>& run) {
  ScopedOptions scope;
  std::vector<std::vector<float>> results;
  for (Order order : {Order::ascending, Order::descending, Order::random})
    for (Copies copies : {Copies::early, Copies::late}) {
      scope->order = order;
      scope->copies = copies;
      results.push_back(run());
      for (float& value : results.back())
        if (std::isnan(value)) value = -12345;  // comparable
    }
  return !std::all_of(results.begin(), results.end(),
                      [&](const auto& result) { return result == results[0]; });
}

std::string report;  // of the latest run

std::vector<float> run_exchange(Race race) {
  const DeviceArray<float> in(numbers(128)), out(128);
  report = report_of([&] { enqueue(exchange, dim3(2), dim3(64), 0, nullptr, race, in, out); });
  return out.values();
}
std::vector<float> run_in_warp(Race race) {
  const DeviceArray<float> in(numbers(32)), out(32);
  report = report_of([&] { enqueue(exchange_in_warp, dim3(1), dim3(32), 0, nullptr, race, in, out); });
  return out.values();
}
std::vector<float> run_copied(Race race) {
  const DeviceArray<float> in(numbers(128)), out(128);
  report = report_of([&] { enqueue(copied, dim3(1), dim3(32), 0, nullptr, race, in, out); });
  return out.values();
}
std::vector<float> run_overlapping(Race race) {
  const DeviceArray<float> out(std::vector<float>(128, 0.0f));
  report = report_of([&] { enqueue(overlapping_blocks, dim3(4), dim3(32), 0, nullptr, race, out); });
  return out.values();
}

}  // namespace
}  // namespace goat::GOAT_TARGET

using namespace goat::GOAT_TARGET;

TEST_CASE("simt: sound kernels have no races and give the same bits in every schedule") {
  ScopedOptions scope;
  for (const auto& run : {run_exchange, run_in_warp, run_copied, run_overlapping}) {
    CHECK_FALSE(schedules_differ([&] {
      std::vector<float> result = run(Race::none);
      CHECK(report == "");
      return result;
    }));
  }
  const DeviceArray<unsigned char> out(64);
  CHECK(report_of([&] { enqueue(bytes, dim3(1), dim3(64), 0, nullptr, out); }) == "");
}

TEST_CASE("simt: a missing __syncthreads is found") {
  CHECK(schedules_differ([] { return run_exchange(Race::no_barrier); }));
  if (!race_checking_available()) return;
  ScopedOptions scope;
  run_exchange(Race::no_barrier);
  check_race(report, "race");
  run_exchange(Race::no_second_barrier);
  check_race(report, "race, write after read");
  CHECK(counters().races > 0);
}

TEST_CASE("simt: a missing __syncwarp is found") {
  CHECK(schedules_differ([] { return run_in_warp(Race::no_syncwarp); }));
  if (!race_checking_available()) return;
  ScopedOptions scope;
  run_in_warp(Race::no_syncwarp);
  check_race(report, "race");
}

TEST_CASE("simt: a missing wait for an asynchronous copy, and a missing barrier after it, are found") {
  CHECK(schedules_differ([] { return run_copied(Race::no_copy_wait); }));
  CHECK(schedules_differ([] { return run_copied(Race::no_barrier_after_copy); }));
  if (!race_checking_available()) return;
  ScopedOptions scope;
  for (Copies copies : {Copies::early, Copies::late}) {
    scope->copies = copies;
    run_copied(Race::no_copy_wait);
    check_race(report, "read before the asynchronous copy was waited for");
    scope->order = Order::descending;
    run_copied(Race::no_barrier_after_copy);
    check_race(report, "tile[+");
  }
}

TEST_CASE("simt: blocks that write the same memory are found") {
  CHECK(schedules_differ([] { return run_overlapping(Race::blocks_overlap); }));
  if (!race_checking_available()) return;
  ScopedOptions scope;
  run_overlapping(Race::blocks_overlap);
  check_race(report, "write over another block's write", false);
}

TEST_CASE("simt: a missing __threadfence before the last block's ticket is found") {
  if (!race_checking_available()) return;
  ScopedOptions scope;
  for (Race race : {Race::none, Race::no_fence}) {
    const DeviceArray<float> partial(8), out(std::vector<float>{0});
    const DeviceArray<unsigned> ticket(std::vector<unsigned>{0});
    report =
        report_of([&] { enqueue(last_block, dim3(8), dim3(32), 0, nullptr, race, partial, ticket, out); });
    if (race == Race::none)
      CHECK(report == "");
    else
      check_race(report, "read of another block's write");
  }
}

TEST_CASE("simt: plain and atomic accesses to the same place are a race, atomics alone are not") {
  if (!race_checking_available()) return;
  ScopedOptions scope;
  for (Race race : {Race::none, Race::atomic_and_plain}) {
    const DeviceArray<int> count(std::vector<int>{0});
    report = report_of([&] { enqueue(counted, dim3(2), dim3(64), 0, nullptr, race, count); });
    if (race == Race::none)
      CHECK(report == "");
    else
      check_race(report, "race");
  }
}
