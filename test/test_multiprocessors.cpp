// Kernels whose grids follow the number of multiprocessors: their threads walk over what one wave of blocks
// does not reach, and the results do not depend on how many there are.
#ifdef GOAT_HAS_SIMT
#include <cmath>
#include <vector>

#include "test/catch.h"
#include "test/simulated_gpu.h"

using namespace goat;
using namespace goat::test;

namespace {
using Values = std::vector<double>;

// work(device) with 1, 2 and 132 multiprocessors: the same bits, none of them missing.
template <class Work>
void check_multiprocessors(Work work) {
  Values first;
  for (const int multiprocessors : {132, 2, 1}) {
    INFO(multiprocessors << " multiprocessors");
    const SimulatedGpu device(90, multiprocessors);
    const Values values = work(*device);
    for (const double value : values)
      if (std::isnan(value)) FAIL("an element was left out");
    if (first.empty()) first = values;
    CHECK((values == first));
  }
}

Values drawn(std::int64_t count, Rng& rng) {
  std::normal_distribution<double> normal;
  Values values(static_cast<std::size_t>(count));
  for (double& value : values) value = normal(rng);
  return values;
}
}  // namespace

TEST_CASE("adamw: updates every element, however few multiprocessors there are") {
  if (!simt_is_tested()) return;
  Rng rng(fresh_seed());
  const std::int64_t n = 3 * 16384 + 5;  // one wave of 2 multiprocessors takes 16384
  const Values start = drawn(n, rng), gradient = drawn(n, rng);
  for (const DType dtype : {DType::f32, DType::bf16})
    check_multiprocessors([&](Device& device) {
      StepState state{};
      state.learning_rate = 1e-2f;
      state.clip_scale = 1;
      state.updates = 1;
      const DeviceBuffer memory(device, sizeof state);
      device.upload(memory.data(), &state, sizeof state);
      const auto master = Operand::of(device, start, {n}, "master"), m = Operand::zeros(device, {n}, "m"),
                 v = Operand::zeros(device, {n}, "v"), grad = Operand::of(device, gradient, {n}, "grad");
      const Operand param(device, dtype, {n}, "param");
      device.run(AdamW{static_cast<StepState*>(memory.data()), param, master, m, v, grad});
      Values all = param.values();
      for (const Operand* operand : {&master, &m, &v}) {
        const Values values = operand->values();
        all.insert(all.end(), values.begin(), values.end());
      }
      CHECK(master.values() != start);
      return all;
    });
}

TEST_CASE("linear: a bias that is spread over the rows reaches all, however few multiprocessors there are") {
  if (!simt_is_tested()) return;
  Rng rng(fresh_seed());
  const std::int64_t N = 131, I = 2, O = 67;  // one wave of 2 multiprocessors takes 4096 elements
  const Values x_values = drawn(N * I, rng), w_values = drawn(O * I, rng), b_values = drawn(O + 1, rng);
  for (const DType dtype : {DType::f32, DType::bf16})
    check_multiprocessors([&](Device& device) {
      const auto x = Operand::of(device, x_values, {N, I}, "x", dtype),
                 weight = Operand::of(device, w_values, {O, I}, "weight", dtype),
                 bias = Operand::of(device, b_values, {O + 1}, "bias", dtype);
      const Operand out(device, dtype, {N, O}, "out");
      device.run(LinearForward{out, x, weight, bias.tensor().slice(0, 1, O)});
      return out.values();
    });
}
#endif
