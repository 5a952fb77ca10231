// Decoding: few queries against many keys, whose parts the device may split and merge.
#include <vector>

#include "test/attention_operands.h"
#include "test/catch.h"
#include "test/each_variant.h"
#include "test/schedules.h"
#include "test/tested_device.h"

#ifdef GOAT_HAS_SIMT
#include "test/simulated_gpu.h"
#endif

using namespace goat;
using namespace goat::test;

namespace {
using Index = std::int64_t;

// The problem's operands on a device: q [B, T_q, H, d_h]; k and v as a cache [B, capacity, 2, H_k, d_h], and
// the key bias as one [B, H, capacity], of which the first T_k rows are filled and the others poisoned.
struct Decoding {
  Decoding(Device& on, DType dtype, const AttentionProblem& problem, Index capacity)
      : device(on),
        t_k(problem.t_k),
        scale(static_cast<float>(problem.scale)),
        causal(problem.causal),
        q(Operand::of(on, problem.q, {problem.batch, problem.t_q, problem.heads, problem.head_dim}, "q",
                      dtype)),
        cache(on, dtype, {problem.batch, capacity, 2, problem.key_heads(), problem.head_dim}, "cache"),
        key_bias(on, DType::f64, {problem.batch, problem.heads, capacity}, "key_bias"),
        slope(on, DType::f32, {problem.heads}, "slope"),
        out(on, dtype, {problem.batch, problem.t_q, problem.heads, problem.head_dim}, "out"),
        lse(on, DType::f32, {problem.batch, problem.heads, problem.t_q}, "lse") {
    std::vector<double> filled = cache.values();
    const Index row = problem.key_heads() * problem.head_dim;
    for (Index b = 0; b < problem.batch; ++b)
      for (Index t = 0; t < t_k; ++t)
        for (Index c = 0; c < row; ++c) {
          double* to = filled.data() + (b * capacity + t) * 2 * row + c;
          to[0] = problem.k[(b * t_k + t) * row + c];
          to[row] = problem.v[(b * t_k + t) * row + c];
        }
    cache.set(filled);
    has_slope = !problem.slope.empty();
    if (has_slope) slope.set(problem.slope);
    has_key_bias = !problem.key_bias.empty();
    std::vector<double> biases = key_bias.values();
    for (std::size_t i = 0; i < problem.key_bias.size(); ++i)
      biases[i / static_cast<std::size_t>(t_k) * static_cast<std::size_t>(capacity) +
             i % static_cast<std::size_t>(t_k)] = problem.key_bias[i];
    key_bias.set(biases);
  }

  AttentionForward operation() const {
    AttentionForward op;
    op.out = out;
    op.lse = lse;
    op.q = q;
    op.k = cache.tensor().select(2, 0).slice(1, 0, t_k);
    op.v = cache.tensor().select(2, 1).slice(1, 0, t_k);
    if (has_slope) op.slope = slope;
    if (has_key_bias) op.key_bias = key_bias.tensor().slice(2, 0, t_k);
    op.scale = scale;
    op.causal = causal;
    return op;
  }
  void run() { device.run(operation()); }

  Device& device;
  Index t_k;
  float scale;
  bool causal, has_slope = false, has_key_bias = false;
  Operand q, cache, key_bias, slope, out, lse;
};

AttentionProblem random_problem(const AttentionShape& shape, DType dtype, Rng& rng) {
  AttentionProblem problem = random_attention(shape, rng);
  for (std::vector<double>* values : {&problem.q, &problem.k, &problem.v})
    *values = rounded_to(dtype, *values);
  return problem;
}

void check_decoding(Device& device, DType dtype, const AttentionShape& shape, Rng& rng) {
  INFO("B " << shape.batch << ", T_q " << shape.t_q << ", T_k " << shape.t_k << ", H " << shape.heads
            << ", d_h " << shape.head_dim << (shape.causal ? ", causal" : "")
            << (shape.slope ? ", slope" : "") << (shape.key_bias ? ", key bias" : "") << ", " << shape.group
            << " heads a group");
  const AttentionProblem problem = random_problem(shape, dtype, rng);
  Decoding decoding(device, dtype, problem, shape.t_k + 3);
  decoding.run();
  const AttentionValues want = attention(problem);
  if (dtype == DType::bf16 && shape.t_k < 256)  // tensor cores, to which the weights go as bf16
    CHECK_BF16(decoding.out.values(), want.out.value, want.out.terms, rounded_to(dtype, want.out.value));
  else
    CHECK_MATCHES(dtype, decoding.out.values(), want.out.value, want.out.terms);
  CHECK_FP32(decoding.lse.values(), want.lse, want.lse_terms);
}
}  // namespace

TEST_CASE("attention decode: matches float64 for one query and any number of keys", "[attention]") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const Index t_k : {1, 2, 31, 128, 255, 256, 257, 383, 384, 385, 500, 640, 1000, 2000})
      check_decoding(device, dtype, {1, 1, t_k, 2, 64, 64, 0, true, rng() % 2 == 0}, rng);
  });
}

TEST_CASE("attention decode: matches float64 for every head dimension, aligned and not", "[attention]") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const Index head_dim : {1, 7, 8, 16, 32, 33, 40, 64, 100, 128, 130, 256})
      for (const Index t_q : {1, 3})
        check_decoding(device, dtype, {1, t_q, 300, 2, head_dim, head_dim, 0, true, true}, rng);
  });
}

TEST_CASE("attention decode: a query sees no key after its position, nor any of another head or sequence",
          "[attention]") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const Index t_q : {1, 2, 3, 4})
      for (const Index t_k :
           {256, 258, 385, 513})  // the last split may hold fewer keys than there are queries
        for (const bool causal : {true, false})
          check_decoding(device, dtype, {2, t_q, t_k, 3, 32, 32, 0, causal, true}, rng);
  });
}

TEST_CASE("attention decode: matches float64 with many heads, where the splits are long", "[attention]") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    check_decoding(device, dtype, {16, 1, 777, 16, 16, 16, 0, true, true},
                   rng);  // 2 blocks a head would hold 389 and 388 keys
  });
}

TEST_CASE("attention decode: matches float64 with a key bias, counted from the row's own position",
          "[attention]") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const Index t_q : {1, 2, 4})
      for (const Index t_k : {256, 385, 1000})
        for (const bool slope : {true, false})
          check_decoding(device, dtype, {2, t_q, t_k, 2, 32, 32, 0, true, slope, dtype, 1, true}, rng);
  });
}

TEST_CASE("attention decode: matches float64 where heads share keys and values", "[attention]") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const auto& [heads, group] :
         {std::pair<Index, Index>{4, 2}, {6, 3}, {3, 3}, {8, 4}, {8, 8}, {10, 5}, {7, 7}})
      for (const Index t_q : {1, 3})
        for (const bool key_bias : {true, false})
          check_decoding(device, dtype, {2, t_q, 300, heads, 40, 40, 0, true, true, dtype, group, key_bias},
                         rng);
    check_decoding(device, dtype, {1, 2, 1500, 6, 16, 16, 0, false, true, dtype, 3}, rng);
  });
}

TEST_CASE("attention decode: matches float64 at the borders of every number of pieces of keys",
          "[attention]") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const Index t_k : {5, 63, 64, 65, 67, 128, 130, 193})
      for (const Index t_q : {1, 2, 3, 4, 5})
        for (const Index group : {1, 2, 3}) {
          const bool causal = rng() % 4 != 0;
          check_decoding(device, dtype,
                         {1 + t_q % 2, t_q, t_k, 6, 20, 20, 0, causal, rng() % 2 == 0, dtype, group,
                          causal && rng() % 2 == 0},
                         rng);
        }
  });
}

TEST_CASE("attention decode: matches float64 where the rows of a head are neighbours", "[attention]") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const Index t_q : {1, 3}) {
      AttentionProblem problem =
          random_problem({2, t_q, 150, 4, 24, 24, 0, true, true, dtype, 2, true}, dtype, rng);
      DeviceAttention on_device(device, problem, 24, 0, dtype, Layout::heads_first);
      on_device.forward();
      const AttentionValues want = attention(problem);
      if (dtype == DType::bf16)
        CHECK_BF16(on_device.out.values(), want.out.value, want.out.terms, rounded_to(dtype, want.out.value));
      else
        CHECK_FP32(on_device.out.values(), want.out.value, want.out.terms);
      CHECK_FP32(on_device.lse.values(), want.lse, want.lse_terms);
    }
  });
}

TEST_CASE("attention decode on the cpu: a key bias of millions costs no accuracy, whatever the query",
          "[attention]") {
  const auto device = open_tested("cpu");
  Rng rng(fresh_seed());
  AttentionProblem problem =
      random_problem({1, 4, 200, 2, 16, 16, 0, true, false, DType::f32, 1, true}, DType::f32, rng);
  for (double& bias : problem.key_bias) bias += 3e6;
  Decoding decoding(*device, DType::f32, problem, 203);
  decoding.run();
  const AttentionValues want = attention(problem);
  CHECK_FP32(decoding.out.values(), want.out.value, want.out.terms);
  CHECK_FP32(decoding.lse.values(), want.lse, want.lse_terms);
}

TEST_CASE("attention decode: matches float64 with steep slopes and large logits", "[attention]") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const double factor : {1.0, 8.0}) {
      AttentionProblem problem = random_problem({1, 2, 1100, 4, 24, 24, 0, true, true}, dtype, rng);
      problem.slope = {0.7071f, 4.0f, 100.0f,
                       -0.01f};  // logits of moderate size where the softmax has its mass
      for (double& value : problem.q) value = rounded_to(dtype, factor * value);
      Decoding decoding(device, dtype, problem, 1100);
      decoding.run();
      const AttentionValues want = attention(problem);
      CHECK_MATCHES(dtype, decoding.out.values(), want.out.value, want.out.terms);
      CHECK_FP32(decoding.lse.values(), want.lse, want.lse_terms);
    }
  });
}

TEST_CASE("attention decode: the last rows of a long sequence are the same alone as among many queries",
          "[attention]") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    const Index length = 400, heads = 2, head_dim = 32;
    const AttentionProblem whole =
        random_problem({1, length, length, heads, head_dim, head_dim, 0, true, true}, dtype, rng);
    Decoding together(device, dtype, whole, length);
    together.run();
    for (const Index t_q : {1, 4}) {
      AttentionProblem last = whole;
      last.t_q = t_q;
      last.q.erase(last.q.begin(), last.q.end() - t_q * heads * head_dim);
      Decoding alone(device, dtype, last, length);
      alone.run();
      const std::vector<double> want = values_of(device, together.out.tensor().slice(1, length - t_q, t_q));
      // two roundings of the same number
      const double tolerance = dtype == DType::bf16 ? 0x1p-7 : 1e-5;
      const std::vector<double> got = alone.out.values();
      double difference = 0, norm = 0;
      for (std::size_t i = 0; i < want.size(); ++i) {
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
      }
      CHECK(difference <= tolerance * tolerance * norm);
      CHECK_FP32(alone.lse.values(), values_of(device, together.lse.tensor().slice(2, length - t_q, t_q)));
    }
  });
}

TEST_CASE("attention decode: the same bits in any order of threads", "[attention]") {
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    Rng rng(fresh_seed());
    for (const Index head_dim : {32, 33}) {
      const AttentionProblem problem =
          random_problem({1, 2, 600, 6, head_dim, head_dim, 0, true, true, dtype, 3, true}, dtype, rng);
      Decoding decoding(*device, dtype, problem, 601);
      check_schedules(name, [&] {
        decoding.run();
        std::vector<double> results = decoding.out.values();
        for (const double value : decoding.lse.values()) results.push_back(value);
        return results;
      });
    }
  }
}

#ifdef GOAT_HAS_SIMT
TEST_CASE("attention decode: matches float64 on GPUs of every architecture", "[attention]") {
  for_each_architecture([](Device& device, int, Rng& rng) {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Index head_dim : {32, 64, 128})
        check_decoding(device, dtype, {1, 2, 300, 1, head_dim, head_dim, 0, true, true}, rng);
  });
}
#endif
