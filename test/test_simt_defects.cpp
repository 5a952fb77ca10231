// Defects that every build finds: wrong barriers, warp divergence, missing lanes, what a GPU refuses,
// forgotten copies, overflowing stacks. Each is planted in a kernel; the report must name the source line,
// and the device must work afterwards.
#include <stdexcept>

#include "kernels/cuda/ptx.cuh"
#include "test/simulated.h"

using namespace goat::test;

namespace goat::GOAT_TARGET {
namespace {

constexpr unsigned full = 0xFFFFFFFFu;

enum class Defect {
  none,
  early_return,
  returned_before,
  two_barriers,
  barrier_in_branch,
  shuffle_in_branch,
  shuffle_and_vote,
  two_shuffles,
  missing_lane,
  not_in_mask,
  reads_missing_lane,
  bad_width,
  returned_lane,
  mma_in_branch,
  trap,
  exception,
  misaligned_vector,
  misaligned_atomic,
  copy_outside,
  copy_misaligned,
  copy_from_host,
  copy_forgotten,
  matrix_outside,
  matrix_misaligned,
};

// Uses `value` where a compiler must keep it.
__device__ void keep(const char* value) { asm volatile("" ::"r"(value) : "memory"); }

__device__ void barrier_defects(Defect defect, unsigned thread) {
  if (defect == Defect::early_return) {
    if (thread == 70) return;
    MARK(0), __syncthreads();
  }
  if (defect == Defect::two_barriers) {
    if (thread < 32)
      MARK(0), __syncthreads();
    else
      MARK(1), __syncthreads();
  }
  if (defect == Defect::barrier_in_branch) {
    if (thread < 32) MARK(0), __syncthreads();
  }
}

__device__ void warp_defects(Defect defect, unsigned thread, float* out) {
  const unsigned lane = thread % 32;
  float value = static_cast<float>(lane);
  if (defect == Defect::shuffle_in_branch) {
    if (lane < 16) MARK(0), value += __shfl_xor_sync(full, value, 16);
    MARK(1), __syncthreads();
  }
  if (defect == Defect::shuffle_and_vote) {
    if (lane < 16)
      MARK(0), value += __shfl_xor_sync(full, value, 16);
    else
      MARK(1), value += static_cast<float>(__any_sync(full, lane == 3));
  }
  if (defect == Defect::two_shuffles) {
    if (lane < 16)
      MARK(0), value += __shfl_xor_sync(full, value, 16);
    else
      MARK(1), value -= __shfl_xor_sync(full, value, 16);
  }
  if (defect == Defect::missing_lane && lane != 5) MARK(0), value += __shfl_xor_sync(full, value, 16);
  if (defect == Defect::not_in_mask) MARK(0), value += __shfl_sync(0xFFFFu, value, 0);
  if (defect == Defect::reads_missing_lane && lane < 16)
    MARK(0), value += __shfl_down_sync(0xFFFFu, value, 8);
  if (defect == Defect::bad_width) MARK(0), value += __shfl_xor_sync(full, value, 1, 12);
  if (defect == Defect::mma_in_branch && lane < 31) {
    float d[4] = {};
    const std::uint32_t a[4] = {};
    MARK(0), mma_bf16(d, a, 0u, 0u);
    value += d[0];
  }
  if (out) out[blockIdx.x * 96 + thread] = value;
}

__device__ void memory_defects(Defect defect, unsigned thread, const float* in, const float* host,
                               float* out) {
  GOAT_SHARED(tile, float[64]);
  float* dynamic = dynamic_shared<float>();
  if (defect == Defect::misaligned_vector && thread == 3) {
    const float4 vector = (MARK(0), __ldg(reinterpret_cast<const float4*>(in + 1)));
    out[0] = vector.x;
  }
  if (defect == Defect::misaligned_atomic && thread == 3)
    MARK(0), atomicAdd(reinterpret_cast<unsigned*>(reinterpret_cast<char*>(out) + 2), 1u);
  if (defect == Defect::copy_outside && thread == 3) MARK(0), copy_async_16(tile + 62, in);
  if (defect == Defect::copy_misaligned && thread == 3) MARK(0), copy_async_16(tile + 1, in);
  if (defect == Defect::copy_from_host && thread == 3) MARK(0), copy_async_16(tile, host);
  if (defect == Defect::copy_forgotten && thread == 3) {
    MARK(0), copy_async_16(tile, in);
    copy_async_commit();
  }
  std::uint32_t fragment[4] = {};
  if (defect == Defect::matrix_outside && thread < 32)
    MARK(0), ldmatrix_x4(fragment, dynamic + thread * 4 + 32);
  if (defect == Defect::matrix_misaligned && thread < 32)
    MARK(0), ldmatrix_x4(fragment, dynamic + (thread == 7 ? 1 : 0));
  if (fragment[0] == 77) out[0] = 1;
}

__device__ __attribute__((noinline)) void deep(int level) {
  char frame[16 * 1024];
  memset(frame, level, sizeof frame);
  keep(frame);
  if (level > 0) deep(level - 1);
  keep(frame);
}

// More local variables than a stack holds: found where the thread waits, or when it returns.
__global__ void waits_with_big_frame() {
  char frame[100 * 1024];
  keep(frame);
  MARK(0), __syncthreads();
  keep(frame);
}
__global__ void fills_big_frames() {
  if (threadIdx.x == 0) deep(5);
}

__global__ void defective(Defect defect, const float* in, const float* host, float* out) {
  const unsigned thread = threadIdx.x;
  if (defect == Defect::returned_before && thread == 0) return;
  if (defect == Defect::returned_before) MARK(0), __syncthreads();
  if (defect == Defect::returned_lane && thread == 1) return;
  if (defect == Defect::returned_lane) MARK(0), __syncwarp();
  barrier_defects(defect, thread);
  if (defect == Defect::early_return && thread == 70) return;
  warp_defects(defect, thread, defect == Defect::none ? out : nullptr);
  memory_defects(defect, thread, in, host, out);
  if (defect == Defect::trap && thread == 9) MARK(0), __trap();
  if (defect == Defect::exception && thread == 9) throw std::runtime_error("from the kernel");
}

// The report of a launch of two blocks of 96 threads; afterwards a sound kernel must run.
std::string report(Defect defect) {
  const DeviceArray<float> in(1024), out(1024);
  const std::vector<float> host(64);
  const float* host_memory = host.data();
  const std::string text =
      report_of([&] { enqueue(defective, dim3(2), dim3(96), 512, nullptr, defect, in, host_memory, out); });
  enqueue(defective, dim3(2), dim3(96), 512, nullptr, Defect::none, in, host_memory, out);
  for (int i = 0; i < 96; ++i) REQUIRE(out[static_cast<std::size_t>(i)] == static_cast<float>(i % 32));
  return text;
}

void check_report(Defect defect, const std::string& what, int marks) {
  ScopedOptions scope;
  for (Order order : {Order::ascending, Order::descending, Order::random}) {
    scope->order = order;
    const std::string text = report(defect);
    INFO(text);
    CHECK_THAT(text, ContainsSubstring(what));
    CHECK_THAT(text, ContainsSubstring("defective (test_simt_defects.cpp"));
    for (int mark = 0; mark < marks; ++mark) CHECK_THAT(text, ContainsSubstring(marked(mark)));
  }
}

__global__ void too_much_static() {
  GOAT_SHARED(first, float[5000]);
  GOAT_SHARED(second, float[8000]);
  first[threadIdx.x] = second[threadIdx.x];
}
__global__ void some_static(float* out) {
  GOAT_SHARED(values, float[8192]);
  values[threadIdx.x] = 1;
  out[threadIdx.x] = values[threadIdx.x];
}
__global__ void nothing() {}
__global__ void nested(float* out) { enqueue(some_static, dim3(1), dim3(1), 0, nullptr, out); }

}  // namespace
}  // namespace goat::GOAT_TARGET

using namespace goat::GOAT_TARGET;

TEST_CASE("simt: barriers that not every thread reaches are reported") {
  check_report(Defect::early_return, "barrier divergence", 1);
  check_report(Defect::returned_before, "barrier divergence", 1);
  check_report(Defect::two_barriers, "barrier divergence", 2);
  check_report(Defect::barrier_in_branch, "barrier divergence", 1);
}

TEST_CASE("simt: warp divergence and missing lanes are reported") {
  check_report(Defect::shuffle_in_branch, "warp divergence", 2);
  check_report(Defect::shuffle_and_vote, "warp divergence", 2);
  check_report(Defect::two_shuffles, "warp divergence", 2);
  check_report(Defect::missing_lane, "warp divergence", 1);
  check_report(Defect::not_in_mask, "does not name it", 1);
  check_report(Defect::reads_missing_lane, "which the mask 0000ffff does not name", 1);
  check_report(Defect::bad_width, "width 12", 1);
  check_report(Defect::returned_lane, "warp divergence", 1);
  check_report(Defect::mma_in_branch, "warp divergence", 1);
}

TEST_CASE("simt: traps and exceptions of kernels end the launch, not the program") {
  check_report(Defect::trap, "__trap()", 1);
  check_report(Defect::exception, "from the kernel", 0);
  ScopedOptions scope;
  scope->threads = 3;
  CHECK_THAT(report(Defect::exception), ContainsSubstring("from the kernel"));
}

TEST_CASE("simt: misaligned and misplaced intrinsics are reported") {
  if (race_checking_available() || !address_sanitizer)
    check_report(Defect::misaligned_atomic, "misaligned access: 4 bytes", 1);
  check_report(Defect::misaligned_vector, "misaligned access: 16 bytes", 1);
  check_report(Defect::copy_outside, "cp.async: out of bounds, 16 bytes are written at tile[+248]", 1);
  check_report(Defect::copy_misaligned, "cp.async: misaligned access", 1);
  check_report(Defect::copy_from_host, "not in device memory", 1);
  check_report(Defect::copy_forgotten, "never waited for", 1);
  check_report(Defect::matrix_outside, "ldmatrix: out of bounds", 1);
  check_report(Defect::matrix_misaligned, "ldmatrix: misaligned access, lane 7", 1);
}

TEST_CASE("simt: a thread that overflows its stack is reported") {
  if (address_sanitizer) return;  // AddressSanitizer ends the program there
  ScopedOptions scope;
  const std::string text = report_of([] { enqueue(waits_with_big_frame, dim3(1), dim3(64), 0, nullptr); });
  CHECK_THAT(text, ContainsSubstring("stack overflow") && ContainsSubstring(marked(0)));
  CHECK_THAT(report_of([] { enqueue(fills_big_frames, dim3(1), dim3(64), 0, nullptr); }),
             ContainsSubstring("stack overflow"));
  CHECK(report(Defect::none) == "");
}

TEST_CASE("simt: what a GPU refuses to start is refused") {
  ScopedOptions scope;
  DeviceArray<float> out(1024);
  const auto start = [](dim3 grid, dim3 block, std::size_t shared) {
    return report_of([&] { enqueue(nothing, grid, block, shared, nullptr); });
  };
  CHECK(start(dim3(2), dim3(1024), 227 * 1024) == "");
  CHECK_THAT(start(dim3(2), dim3(1025), 0),
             ContainsSubstring("nothing (test_simt_defects.cpp") && ContainsSubstring("1025 threads"));
  CHECK_THAT(start(dim3(2), dim3(32, 4, 9), 0), ContainsSubstring("1152 threads"));
  CHECK_THAT(start(dim3(2), dim3(1, 1, 65), 0), ContainsSubstring("at most 64 in z"));
  CHECK_THAT(start(dim3(2), dim3(0), 0), ContainsSubstring("0 threads"));
  CHECK_THAT(start(dim3(1, 65536), dim3(32), 0), ContainsSubstring("grid of (1,65536,1)"));
  CHECK_THAT(start(dim3(1, 1, 65536), dim3(32), 0), ContainsSubstring("65535"));
  CHECK_THAT(start(dim3(0), dim3(32), 0), ContainsSubstring("grid of (0,1,1)"));
  CHECK_THAT(start(dim3(1), dim3(32), 227 * 1024 + 1),
             ContainsSubstring("232449 bytes of dynamic shared memory"));
  scope->architecture = 80;
  CHECK(start(dim3(1), dim3(32), 163 * 1024) == "");
  CHECK_THAT(start(dim3(1), dim3(32), 163 * 1024 + 1), ContainsSubstring("limit of sm_80"));
  scope->architecture = 89;
  CHECK_THAT(start(dim3(1), dim3(32), 99 * 1024 + 1), ContainsSubstring("limit of sm_89"));
  CHECK_THAT(
      report_of([&] { enqueue(some_static, dim3(1), dim3(32), 70 * 1024, nullptr, out); }),
      ContainsSubstring("values (test_simt_defects.cpp") && ContainsSubstring("exceed the limit of 101376"));
  CHECK_THAT(report_of([&] { enqueue(too_much_static, dim3(1), dim3(32), 0, nullptr); }),
             ContainsSubstring("second (test_simt_defects.cpp") && ContainsSubstring("the limit is 49152"));
  CHECK_THAT(report_of([&] { enqueue(nested, dim3(1), dim3(1), 0, nullptr, out); }),
             ContainsSubstring("a kernel cannot enqueue a kernel"));
}
