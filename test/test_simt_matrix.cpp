// Tensor cores, ldmatrix, cp.async and Hopper's units against plain arithmetic, and what they report when
// misused.
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cuda/hopper.cuh"
#include "test/simulated.h"

using namespace goat::test;

namespace goat::GOAT_TARGET {
namespace {

// d (16x8) = a (16x16) b (16x8), through ldmatrix: a by rows, b by its transposed form. `stride` of the rows
// in elements.
__global__ void small_product(const bf16* a, const bf16* b, float* d, int stride) {
  bf16* tile = dynamic_shared<bf16>();
  const int lane = static_cast<int>(threadIdx.x);
  bf16* tile_b = tile + 16 * stride;
  for (int row = 0; row < 16; ++row) {
    if (lane < 16) tile[row * stride + lane] = a[row * 16 + lane];
    if (lane < 8) tile_b[row * stride + lane] = b[row * 8 + lane];
    if (lane >= 8 && lane < 16) tile_b[row * stride + lane] = __float2bfloat16(0.0f);
  }
  __syncwarp();
  std::uint32_t fa[4], fb[4];
  ldmatrix_x4(fa, tile + lane % 16 * stride + lane / 16 * 8);
  ldmatrix_x4_transposed(fb, tile_b + lane % 16 * stride + lane / 16 * 8);
  float sum[4] = {};
  mma_bf16(sum, fa, fb[0], fb[1]);
  const int g = lane / 4, t = lane % 4 * 2;
  d[g * 8 + t] = sum[0];
  d[g * 8 + t + 1] = sum[1];
  d[(g + 8) * 8 + t] = sum[2];
  d[(g + 8) * 8 + t + 1] = sum[3];
}

enum class Misuse { none, no_load_wait, no_product_wait, wrong_parity, forgotten_wait, not_initialised };

// d (64x64) = a (64x64) b^T (b: 64x64), or with a in registers times b: tiles by TMA, products by wgmma.
template <bool registers>
__global__ void __launch_bounds__(128)
    warpgroup_product(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                      float* d, int rows_a, Misuse misuse) {
  bf16* a = dynamic_shared<bf16>();
  bf16* b = a + 64 * 64;
  GOAT_SHARED(loaded, std::uint64_t);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  if (thread == 0 && misuse != Misuse::not_initialised) {
    mbarrier_init(&loaded, 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (thread == 0) {
    MARK(2), mbarrier_arrive_expect(&loaded, 2 * 64 * 128);
    tma_load(a, map_a, 0, rows_a, &loaded);
    tma_load(b, map_b, 0, 0, &loaded);
  }
  if (misuse != Misuse::no_load_wait) MARK(0), mbarrier_wait(&loaded, misuse == Misuse::wrong_parity ? 1 : 0);
  float sum[32] = {};
  const std::uint64_t describe_a = wgmma_descriptor(a), describe_b = wgmma_descriptor(b);
  wgmma_fence();
  for (int k = 0; k < 4; ++k) {
    if constexpr (registers) {
      std::uint32_t fragment[4];
      const int row = warp * 16 + lane % 16, column = k * 16 + lane / 16 * 8;
      ldmatrix_x4(fragment, a + row * 64 + ((column / 8) ^ (row % 8)) * 8);
      wgmma_registers(sum, fragment, describe_b + static_cast<std::uint64_t>(k) * 128, 1);
    } else {
      MARK(1), wgmma_shared(sum, describe_a + static_cast<std::uint64_t>(k) * 2,
                            describe_b + static_cast<std::uint64_t>(k) * 2, k > 0);
    }
  }
  wgmma_commit();
  if (misuse == Misuse::no_product_wait)
    for (float& value : sum) value += 1;
  if (misuse != Misuse::forgotten_wait) wgmma_wait<0>();
  for (int i = 0; i < 32; ++i) {
    const int row = warp * 16 + lane / 4 + (i / 2 % 2) * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    d[row * 64 + column] = sum[i];
  }
}

std::vector<bf16> random_bf16(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<bf16> values(count);
  for (bf16& value : values)
    value = __float2bfloat16(static_cast<float>(static_cast<int>(random() % 17) - 8));  // sums are exact
  return values;
}
float product(const std::vector<bf16>& a, std::size_t at_a, std::size_t step_a, const std::vector<bf16>& b,
              std::size_t at_b, std::size_t step_b, int count) {
  float sum = 0;
  for (int k = 0; k < count; ++k)
    sum += __bfloat162float(a[at_a + static_cast<std::size_t>(k) * step_a]) *
           __bfloat162float(b[at_b + static_cast<std::size_t>(k) * step_b]);
  return sum;
}

template <bool registers>
std::string run_warpgroup(Misuse misuse, bool check = false) {
  const std::vector<bf16> a = random_bf16(100 * 64, 3), b = random_bf16(64 * 64, 4);
  const DeviceArray<bf16> device_a(a), device_b(b);
  const DeviceArray<float> d(64 * 64);
  constexpr int first_row = 50;  // the box reaches past the 100 rows: zeros
  const TensorMap map_a = make_tensor_map(device_a, 100, 64, 64),
                  map_b = make_tensor_map(device_b, 64, 64, 64);
  const std::string report = report_of([&] {
    enqueue(warpgroup_product<registers>, dim3(1), dim3(128), 2 * 64 * 128, nullptr, map_a, map_b, d,
            first_row, misuse);
  });
  for (std::size_t i = 0; check && i < 64; ++i)
    for (std::size_t n = 0; n < 64; ++n) {
      const float want = i + first_row >= 100 ? 0
                                              : product(a, (i + first_row) * 64, 1, b, registers ? n : n * 64,
                                                        registers ? 64 : 1, 64);
      CAPTURE(i, n);
      REQUIRE(d[i * 64 + n] == want);
    }
  return report;
}

}  // namespace
}  // namespace goat::GOAT_TARGET

using namespace goat::GOAT_TARGET;

TEST_CASE("simt: mma and ldmatrix multiply matrices; bank conflicts are counted") {
  ScopedOptions scope;
  const std::vector<bf16> a = random_bf16(256, 1), b = random_bf16(128, 2);
  const DeviceArray<bf16> device_a(a), device_b(b);
  const DeviceArray<float> d(128);
  for (Order order : {Order::ascending, Order::descending, Order::random})
    for (int stride :
         {64, 72}) {  // rows 128 bytes apart are in the same banks, 144 bytes apart in different ones
      scope->order = order;
      reset_counters();
      enqueue(small_product, dim3(1), dim3(32), 32u * static_cast<unsigned>(stride) * sizeof(bf16), nullptr,
              device_a, device_b, d, stride);
      for (std::size_t i = 0; i < 16; ++i)
        for (std::size_t n = 0; n < 8; ++n) REQUIRE(d[i * 8 + n] == product(a, i * 16, 1, b, n, 8, 16));
      CHECK(counters().matrix_reads == 8);
      CHECK(counters().conflicting_matrix_reads == (stride == 64 ? 8 : 0));
    }
}

TEST_CASE("simt: TMA and wgmma multiply matrices, from shared memory and registers") {
  ScopedOptions scope;
  for (Order order : {Order::ascending, Order::descending, Order::random})
    for (Copies copies : {Copies::early, Copies::late, Copies::random}) {
      scope->order = order;
      scope->copies = copies;
      CHECK(run_warpgroup<false>(Misuse::none, true) == "");
      CHECK(run_warpgroup<true>(Misuse::none, true) == "");
    }
}

TEST_CASE("simt: misuse of mbarriers, TMA and wgmma is reported") {
  ScopedOptions scope;
  std::string report = run_warpgroup<false>(Misuse::wrong_parity);
  CHECK_THAT(report, ContainsSubstring("asynchronous copy was waited for") ||
                         (ContainsSubstring("nobody waited") && ContainsSubstring(marked(2))));
  report = run_warpgroup<false>(Misuse::no_load_wait);
  CHECK_THAT(report, ContainsSubstring("asynchronous copy was waited for") ||
                         (ContainsSubstring("nobody waited") && ContainsSubstring(marked(2))));
  report = run_warpgroup<false>(Misuse::no_product_wait);
  CHECK_THAT(report,
             ContainsSubstring("accumulators before they were waited for") && ContainsSubstring(marked(1)));
  report = run_warpgroup<false>(Misuse::forgotten_wait);
  CHECK_THAT(report, ContainsSubstring("never waited for") && ContainsSubstring(marked(1)));
  report = run_warpgroup<false>(Misuse::not_initialised);
  CHECK_THAT(report,
             ContainsSubstring("before it was initialised") && ContainsSubstring("test_simt_matrix.cpp:"));
  CHECK_THROWS_AS(simulated_tensor_map(nullptr, 10, 12, 64), std::invalid_argument);
}
