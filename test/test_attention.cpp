#include <omp.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "test/attention_operands.h"
#include "test/catch.h"
#include "test/each_variant.h"
#include "test/tested_device.h"
#include "test/values.h"

#ifdef GOAT_HAS_SIMT
#include "test/simulated_gpu.h"
#endif

using namespace goat;
using namespace goat::test;

namespace {
using Index = std::int64_t;

Index count_nan(const std::vector<double>& values) {
  return std::count_if(values.begin(), values.end(), [](double value) { return std::isnan(value); });
}

void check_forward(const AttentionProblem& problem, const DeviceAttention& attention_on_device) {
  const AttentionValues want = attention(problem);
  CHECK_FP32(attention_on_device.out.values(), want.out.value, want.out.terms);
  CHECK_FP32(attention_on_device.lse.values(), want.lse, want.lse_terms);
}

void check_backward(const AttentionProblem& problem, const AttentionShape& shape,
                    const DeviceAttention& got) {
  const AttentionOutputs want = attention_outputs(problem, shape.content_dim, shape.lanes);
  CHECK_FP32(got.q_gradient(), want.dq.value, want.dq.terms);
  CHECK_FP32(got.k_gradient(), want.dk.value, want.dk.terms);
  CHECK_FP32(got.v_gradient(), want.dv.value, want.dv.terms);
  CHECK_FP32(got.dkey_bias.values(), want.dkey_bias.value, want.dkey_bias.terms);
  CHECK_FP32(sum_per_head(got.dslope.values(), shape.batch, shape.heads),
             sum_per_head(want.dslope.value, shape.batch, shape.heads),
             sum_per_head(want.dslope.terms, shape.batch, shape.heads));
  CHECK_FP32(got.dq_lanes.values(), want.dq_lanes.value, want.dq_lanes.terms);
  CHECK_FP32(got.dk_lanes.values(), want.dk_lanes.value, want.dk_lanes.terms);
  const Index row = shape.batch * shape.head_dim, rows = std::max(shape.t_q, shape.t_k),
              unused = shape.heads * (rows - shape.t_q) + 2 * problem.key_heads() * (rows - shape.t_k);
  CHECK(count_nan(got.dqkv.values()) == row * unused);  // nothing else was written
}

void check_attention(Device& device, const AttentionShape& shape, Rng& rng) {
  INFO((shape.key_bias ? "key bias, " : "") << shape.group << " heads a group, ");
  INFO("B " << shape.batch << ", T_q " << shape.t_q << ", T_k " << shape.t_k << ", H " << shape.heads
            << ", d_h " << shape.head_dim << ", d_c " << shape.content_dim << ", 2R " << shape.lanes
            << (shape.causal ? ", causal" : "") << (shape.slope ? ", slope" : ""));
  const AttentionProblem problem = random_attention(shape, rng);
  DeviceAttention on_device(device, problem, shape.content_dim, shape.lanes);
  on_device.forward();
  on_device.backward();
  check_forward(problem, on_device);
  check_backward(problem, shape, on_device);
}

// <dout, out>, the function whose gradients attention_gradients gives.
double objective(const AttentionProblem& problem) {
  const std::vector<double> out = attention(problem).out.value;
  return std::inner_product(out.begin(), out.end(), problem.dout.begin(), 0.0);
}

// Central differences of the objective in every element of `operand`, a field of `problem`.
std::vector<double> differences(AttentionProblem& problem, std::vector<double>& operand) {
  constexpr double step = 1e-5;
  std::vector<double> gradient;
  for (double& value : operand) {
    const double here = value;
    value = here + step;
    const double above = objective(problem);
    value = here - step;
    gradient.push_back((above - objective(problem)) / (2 * step));
    value = here;
  }
  return gradient;
}

double distance(const std::vector<double>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  double worst = 0;
  for (std::size_t n = 0; n < got.size(); ++n) worst = std::max(worst, std::abs(got[n] - want[n]));
  return worst;
}

std::vector<double> times(std::vector<double> values, double factor) {
  for (double& value : values) value *= factor;
  return values;
}

double norm(const std::vector<double>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

std::vector<std::vector<double>> results(const DeviceAttention& attention) {
  return {attention.out.values(),      attention.lse.values(),       attention.q_gradient(),
          attention.k_gradient(),      attention.v_gradient(),       attention.dq_lanes.values(),
          attention.dk_lanes.values(), attention.dkey_bias.values(), attention.dslope.values()};
}

// All results, to be compared as CHECK((a == b)): in one pair of parentheses Catch would print every number.
std::vector<std::vector<double>> run(Device& device, const AttentionProblem& problem, Index content_dim,
                                     Index lanes) {
  DeviceAttention attention(device, problem, content_dim, lanes);
  attention.forward();
  attention.backward();
  return results(attention);
}

double peak_mebibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}
}  // namespace

TEST_CASE("attention oracle: its gradients are the central differences of its forward pass", "[attention]") {
  const auto seed = fresh_seed();
  INFO("GOAT_TEST_SEED=" << seed);
  Rng rng(seed);
  for (const bool causal : {true, false}) {
    AttentionProblem problem = random_attention({2, 3, 5, 2, 4, 4, 0, causal, true}, rng);
    problem.bias.resize(2 * 3 * 5, 0.1);
    const AttentionGradients gradients = attention_gradients(problem);
    CHECK(distance(differences(problem, problem.q), times(gradients.s_k.value, problem.scale)) < 1e-8);
    CHECK(distance(differences(problem, problem.k), times(gradients.s_q.value, problem.scale)) < 1e-8);
    CHECK(distance(differences(problem, problem.v), gradients.dv.value) < 1e-8);
    CHECK(distance(differences(problem, problem.slope), sum_per_head(gradients.dslope.value, 2, 2)) < 1e-8);
  }
}

TEST_CASE("attention oracle: dkey_bias is the central difference in a bias of the key", "[attention]") {
  const auto seed = fresh_seed();
  INFO("GOAT_TEST_SEED=" << seed);
  Rng rng(seed);
  AttentionProblem problem =
      random_attention({1, 1, 6, 3, 4, 4, 0, true, true}, rng);  // one query: a key's bias is a logit's
  problem.bias.resize(3 * 1 * 6, -0.2);
  CHECK(distance(differences(problem, problem.bias), attention_gradients(problem).dkey_bias.value) < 1e-8);
}

TEST_CASE("attention oracle: with a key bias and grouped queries, too, its gradients are central differences",
          "[attention]") {
  const auto seed = fresh_seed();
  INFO("GOAT_TEST_SEED=" << seed);
  Rng rng(seed);
  for (const Index group : {1, 3}) {
    AttentionProblem problem =
        random_attention({2, 3, 5, 3, 4, 4, 0, true, true, DType::f32, group, true}, rng);
    const AttentionGradients gradients = attention_gradients(problem);
    CHECK(distance(differences(problem, problem.q), times(gradients.s_k.value, problem.scale)) < 1e-8);
    CHECK(distance(differences(problem, problem.k), times(gradients.s_q.value, problem.scale)) < 1e-8);
    CHECK(distance(differences(problem, problem.v), gradients.dv.value) < 1e-8);
    CHECK(distance(differences(problem, problem.key_bias), gradients.dkey_bias.value) < 1e-8);
  }
}

TEST_CASE("attention forward and backward: match float64 at odd lengths", "[attention]") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    for (const Index length : reduced() ? std::vector<Index>{1, 7, 64, 65, 97}
                                        : std::vector<Index>{1, 2, 7, 63, 64, 65, 95, 96, 97, 130, 257})
      for (const bool causal : {true, false}) {
        const bool slope = rng() % 2 == 0;
        check_attention(device, {2, length, length, 3, 32, 22, 8, causal, slope}, rng);
      }
  });
}

TEST_CASE("attention forward and backward: match float64 for every head dimension, with and without lanes",
          "[attention]") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    for (const Index head_dim : {1, 8, 20, 32, 52, 64, 128})
      for (const bool slope : {true, false}) {
        check_attention(device, {1, 70, 70, 3, head_dim, head_dim, 0, true, slope}, rng);
        if (head_dim >= 8)
          check_attention(device, {2, 99, 99, 1, head_dim, head_dim - 7, 4, true, slope}, rng);
      }
  });
}

TEST_CASE("attention forward and backward: match float64 where queries and keys differ in number",
          "[attention]") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    for (const Index t_q : {1, 5, 96, 100})
      for (const Index t_k : {100, 192, 250})
        for (const bool causal : {true, false})
          check_attention(device, {2, t_q, t_k, 3, 24, 20, 2, causal, true}, rng);
    check_attention(device, {2, 130, 7, 3, 24, 20, 2, false, true}, rng);
    for (Index lead = 1; lead <= 32;
         lead += reduced() ? 5 : 1)  // the diagonal meets the edges of tiles everywhere
      check_attention(device, {1, 64, 64 + lead, 1, 8, 8, 0, true, true}, rng);
  });
}

TEST_CASE("attention forward and backward: match float64 with steep slopes over many keys", "[attention]") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    const Index length = reduced() ? 300 : 1000;
    const AttentionShape shape{1, length, length, 4, 16, 10, 4, true, true};
    AttentionProblem problem = random_attention(shape, rng);
    problem.slope = {0.7071f, 4.0f, 100.0f, 0.0f};
    DeviceAttention on_device(device, problem, shape.content_dim, shape.lanes);
    on_device.forward();
    on_device.backward();
    check_forward(problem, on_device);
    check_backward(problem, shape, on_device);
  });
}

TEST_CASE("attention forward and backward: match float64 with a key bias, alone, with a slope and with lanes",
          "[attention]") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    for (const bool slope : {false, true})
      for (const Index lanes : {0, 4}) {
        const auto shape = [&](Index batch, Index t_q, Index t_k, Index heads, Index head_dim) {
          return AttentionShape{
              batch, t_q,  t_k,   heads,      head_dim, head_dim - lanes - (lanes > 0 ? 2 : 0),
              lanes, true, slope, DType::f32, 1,        true};
        };
        check_attention(device, shape(2, 97, 97, 3, 24), rng);
        check_attention(device, shape(1, 257, 257, 1, 8), rng);
        check_attention(device, shape(2, 100, 250, 2, 52), rng);
        check_attention(device, shape(1, 5, 193, 2, 130), rng);
        check_attention(device, shape(1, 1, 1, 1, 16), rng);
      }
    for (Index lead = 1; lead <= 96; lead += reduced() ? 13 : 5)  // the base of a tile's bias is everywhere
      check_attention(device, {1, 70, 70 + lead, 1, 8, 8, 0, true, false, DType::f32, 1, true}, rng);
  });
}

TEST_CASE("attention forward and backward: match float64 with a key bias that has grown over 32768 keys",
          "[attention]") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    const Index length = reduced() ? 4096 : 32768;
    for (const Index t_q : {5, 1}) {  // 1: the decode form
      const AttentionShape shape{1, t_q, length, 2, 16, 10, 4, true, false, DType::f32, 2, true};
      AttentionProblem problem = random_attention(shape, rng);
      for (std::size_t i = 0; i < problem.key_bias.size(); ++i)
        problem.key_bias[i] = static_cast<double>(i % static_cast<std::size_t>(length)) * std::log(2.0);
      DeviceAttention on_device(device, problem, shape.content_dim, shape.lanes);
      on_device.forward();
      on_device.backward();
      check_forward(problem, on_device);
      check_backward(problem, shape, on_device);
    }
  });
}

TEST_CASE("attention forward and backward: match float64 where heads share keys and values", "[attention]") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    for (const auto& [heads, group] : {std::pair<Index, Index>{4, 2}, {6, 3}, {5, 5}, {6, 2}})
      for (const bool key_bias : {false, true}) {
        const DType f32 = DType::f32;
        check_attention(device, {2, 97, 97, heads, 24, 18, 4, true, true, f32, group, key_bias}, rng);
        check_attention(device, {1, 70, 130, heads, 33, 33, 0, true, false, f32, group, key_bias}, rng);
        check_attention(device, {1, 3, 100, heads, 130, 120, 2, true, true, f32, group, key_bias}, rng);
      }
    check_attention(device, {1, 130, 70, 6, 24, 18, 4, false, true, DType::f32, 3}, rng);
  });
}

TEST_CASE(
    "attention: grouped queries give the bits of copied keys and values, and the sums of their gradients",
    "[attention]") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    const Index group = 3, width = 24, content = 18, lanes = 4;
    const AttentionProblem grouped =
        random_attention({2, 99, 120, 6, width, content, lanes, true, true, DType::f32, group, true}, rng);
    AttentionProblem copied = grouped;
    copied.group = 1;
    const auto copies = [&](const std::vector<double>& rows) {
      std::vector<double> all;
      for (std::size_t row = 0; row < rows.size(); row += width)
        for (Index copy = 0; copy < group; ++copy)
          all.insert(all.end(), rows.begin() + row, rows.begin() + row + width);
      return all;
    };
    copied.k = copies(grouped.k);
    copied.v = copies(grouped.v);
    const auto got = run(device, grouped, content, lanes), want = run(device, copied, content, lanes);
    for (const std::size_t same : {0, 1, 2, 5, 7, 8})  // all but dk, dv and dk_lanes
      CHECK((got[same] == want[same]));
    const auto summed = [&](const std::vector<double>& values) {  // over the copies of a row
      std::vector<double> sums(values.size() / group);
      for (std::size_t i = 0; i < values.size(); ++i)
        sums[i / (group * width) * width + i % width] += values[i];
      return sums;
    };
    CHECK_FP32(got[3], summed(want[3]), summed(absolute(want[3])));
    CHECK_FP32(got[4], summed(want[4]), summed(absolute(want[4])));
  });
}

TEST_CASE("attention backward: dlambda and dU match float64 within 1e-3 at T=1000", "[attention]") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    const Index length = reduced() ? 300 : 1000;
    const AttentionShape shape{2, length, length, 3, 32, 22, 8, true, true};
    AttentionProblem problem = random_attention(shape, rng);
    problem.slope = {0.5f, 0.0625f, 0.00390625f};
    DeviceAttention on_device(device, problem, shape.content_dim, shape.lanes);
    on_device.forward();
    on_device.backward();
    const AttentionGradients want = attention_gradients(problem);
    const std::vector<double> dlambda = sum_per_head(want.dslope.value, shape.batch, shape.heads);
    CHECK(distance(sum_per_head(on_device.dslope.values(), shape.batch, shape.heads), dlambda) <
          1e-3 * norm(dlambda));
    CHECK(distance(on_device.dkey_bias.values(), want.dkey_bias.value) <
          1e-3 * norm(want.dkey_bias.value) / std::sqrt(6.0 * static_cast<double>(length)));
  });
}

TEST_CASE("attention backward: the other gradients are the same bits without the optional ones",
          "[attention]") {
  for (const std::string& name : device_names()) {
    const auto device = open_tested(name);
    Rng rng(fresh_seed());
    const AttentionShape shape{1, 130, 130, 2, 32, 22, 8, true, true};
    const AttentionProblem problem = random_attention(shape, rng);
    DeviceAttention whole(*device, problem, shape.content_dim, shape.lanes),
        bare(*device, problem, shape.content_dim, shape.lanes);
    whole.forward();
    whole.backward();
    bare.forward();
    AttentionBackward op = bare.backward_operation();
    op.dq_lanes = op.dk_lanes = op.dkey_bias = op.dslope = Tensor{};
    device->run(op);
    CHECK((bare.q_gradient() == whole.q_gradient()));
    CHECK((bare.k_gradient() == whole.k_gradient()));
    CHECK((bare.v_gradient() == whole.v_gradient()));
    CHECK(count_nan(bare.dkey_bias.values()) == bare.dkey_bias.tensor().elements());
  }
}

TEST_CASE("attention forward and backward: the same bits every run", "[attention]") {
  for (const std::string& name : device_names()) {
    const auto device = open_tested(name);
    Rng rng(fresh_seed());
    for (const Index heads : {1, 5}) {
      const Index length = reduced() ? 133 : 333;
      const AttentionProblem problem =
          random_attention({1, length, length, heads, 32, 22, 8, true, true}, rng);
      const auto first = run(*device, problem, 22, 8);
      for (int repetition = 0; repetition < 3; ++repetition) CHECK((run(*device, problem, 22, 8) == first));
    }
  }
}

TEST_CASE("attention on the cpu: the same bits for every number of threads", "[attention]") {
  const auto device = open_tested("cpu");
  Rng rng(fresh_seed());
  const int threads = omp_get_max_threads();
  for (const bool causal : {true, false}) {
    const AttentionProblem problem = random_attention({1, 200, 300, 1, 52, 42, 8, causal, true}, rng);
    omp_set_num_threads(1);
    const auto one = run(*device, problem, 42, 8);
    for (const int count : {2, 3, 5}) {
      omp_set_num_threads(count);
      CHECK((run(*device, problem, 42, 8) == one));
    }
    omp_set_num_threads(threads);
  }
}

TEST_CASE("attention on the cpu: the heads of a group add up in one order, for every number of threads",
          "[attention]") {
  const auto device = open_tested("cpu");
  Rng rng(fresh_seed());
  const int threads = omp_get_max_threads();
  // One head of keys, and two: by heads with one thread (two threads), by tiles with more.
  for (const Index group : {6, 3}) {
    const AttentionProblem problem =
        random_attention({1, 200, 300, 6, 20, 12, 4, true, true, DType::f32, group, true}, rng);
    omp_set_num_threads(1);
    const auto one = run(*device, problem, 12, 4);
    for (const int count : {2, 3, 7}) {
      omp_set_num_threads(count);
      CHECK((run(*device, problem, 12, 4) == one));
    }
    omp_set_num_threads(threads);
  }
}

TEST_CASE("attention forward: a NaN reaches the rows that see it and no earlier tile", "[attention]") {
  for (const std::string& name : device_names()) {
    const auto device = open_tested(name);
    Rng rng(fresh_seed());
    AttentionProblem problem = random_attention({1, 400, 400, 1, 16, 16, 0, true, true}, rng);
    problem.k[250 * 16] = std::numeric_limits<double>::quiet_NaN();
    DeviceAttention on_device(*device, problem, 16, 0);
    on_device.forward();
    const std::vector<double> out = on_device.out.values(), lse = on_device.lse.values();
    CHECK(count_nan(lse) == 150);
    CHECK(count_nan({lse.begin(), lse.begin() + 250}) == 0);
    CHECK(count_nan({out.begin() + 250 * 16, out.end()}) == 150 * 16);
    CHECK(count_nan({out.begin(), out.begin() + 128 * 16}) == 0);
  }
}

TEST_CASE(
    "attention on the cpu: memory is linear in T, 32768 tokens forward and backward in less than 64 MiB more",
    "[attention]") {
  const auto device = open_tested("cpu");
  Rng rng(fresh_seed());
  const Index length = reduced() ? 4096 : 32768;
  const AttentionProblem problem = random_attention({1, length, length, 1, 32, 22, 8, true, true}, rng);
  DeviceAttention on_device(*device, problem, 22, 8);
  const double before = peak_mebibytes();
  on_device.forward();
  on_device.backward();
  CHECK(peak_mebibytes() - before < (reduced() ? 32 : 64));  // T x T floats would be 4096 (reduced: 64)
  CHECK(count_nan(on_device.dslope.values()) == 0);
}

#ifdef GOAT_HAS_SIMT
TEST_CASE("attention forward and backward: match float64 on GPUs of every architecture", "[attention]") {
  for_each_architecture([](Device& device, int, Rng& rng) {
    for (const Index head_dim : {32, 64, 128, 200})
      for (const bool key_bias : {false, true})
        check_attention(device,
                        {1, 40, 70, 2, head_dim, head_dim - 6, 4, true, true, DType::f32, 2, key_bias}, rng);
  });
}
#endif
