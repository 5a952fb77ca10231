// The bf16 attention kernels against float64: every result within twice the error of a plain bf16
// implementation (plain_bf16_attention.h).
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "test/attention_operands.h"
#include "test/catch.h"
#include "test/plain_bf16_attention.h"
#include "test/schedules.h"
#include "test/tested_device.h"
#include "test/values.h"

#ifdef GOAT_HAS_SIMT
#include "test/simulated_gpu.h"
#endif

using namespace goat;
using namespace goat::test;

namespace {
using Index = std::int64_t;

bool all_nan(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return std::isnan(value); });
}

struct References {
  AttentionOutputs want, plain;
  std::vector<double> delta_errors;  // [B H]: sum_i |<dout_i, out_i> - what float64 gives|

  // `largest_logit` where logits are so large that their rounding, 2^-24 of them, is felt in p.
  References(const AttentionProblem& problem, const AttentionShape& shape, const SavedAttention& saved,
             double largest_logit)
      : want(attention_outputs(problem, shape.content_dim, shape.lanes)),
        plain(plain_bf16_attention(problem, shape.content_dim, shape.lanes, saved)),
        delta_errors(shape.batch * shape.heads) {
    for (std::size_t first = 0; first < problem.dout.size(); first += shape.head_dim) {
      double delta_error = 0;
      for (std::size_t n = first; n < first + shape.head_dim; ++n)
        delta_error += problem.dout[n] * (saved.out[n] - want.out.value[n]);
      const Index row = static_cast<Index>(first) / shape.head_dim;
      delta_errors[row / (shape.t_q * shape.heads) * shape.heads + row % shape.heads] +=
          std::abs(delta_error);
    }
    for (Summed* sum : {&want.out, &want.dq, &want.dk, &want.dv, &want.dq_lanes, &want.dk_lanes,
                        &want.dkey_bias, &want.dslope})
      for (double& terms : sum->terms) terms *= 1 + largest_logit / 8;
    // slope (j - i') comes from slope (j - o) and slope (i' - o), o a position of the same tile.
    for (std::size_t row = 0; !problem.slope.empty() && row < want.lse.terms.size(); ++row)
      want.lse.terms[row] += std::abs(problem.slope[row / problem.t_q % problem.heads]) * tile;
    // In the same way with the key bias, which grows here.
    for (std::size_t row = 0; !problem.key_bias.empty() && row < want.lse.terms.size(); ++row) {
      const auto query = static_cast<Index>(row);
      const Index position = problem.position(query % problem.t_q);
      const double* bias = &problem.key_bias[query / problem.t_q * problem.t_k];
      want.lse.terms[row] += bias[position] - bias[std::max<Index>(position - tile, 0)];
    }
  }

 private:
  static constexpr Index tile = 128;
};

// The gradient of the slope is what the keys' shares add up to. Rows of dS add up to 0, so that lags may be
// counted to a query nearby, at most 32 rows away; what rounding leaves of that 0 counts times the distance,
// and so does the error of delta where it is not corrected (not deterministic).
void check_slope_gradient(const References& reference, const DeviceAttention& got, bool deterministic) {
  constexpr double distance = 32;
  const auto heads = static_cast<Index>(reference.delta_errors.size());  // of all sequences
  const auto sums = [&](const std::vector<double>& values) { return sum_per_head(values, 1, heads); };
  const std::vector<double> want = sums(reference.want.dslope.value);
  std::vector<double> plain = sums(reference.plain.dslope.value);
  for (std::size_t head = 0; !deterministic && head < plain.size(); ++head)
    plain[head] = want[head] + std::abs(plain[head] - want[head]) + distance * reference.delta_errors[head];
  std::vector<double> terms = sums(reference.want.dslope.terms);
  const std::vector<double> bias_terms = sums(reference.want.dkey_bias.terms);
  for (std::size_t head = 0; head < terms.size(); ++head) terms[head] += distance * bias_terms[head];
  CHECK_BF16(sums(got.dslope.values()), want, terms, plain);
}

void check_outputs(const References& reference, const DeviceAttention& got, bool deterministic) {
  const AttentionOutputs &want = reference.want, &plain = reference.plain;
  CHECK_BF16(got.out.values(), want.out.value, want.out.terms, plain.out.value);
  CHECK_BF16(got.lse.values(), want.lse.value, want.lse.terms, plain.lse.value);
  CHECK_BF16(got.q_gradient(), want.dq.value, want.dq.terms, plain.dq.value);
  CHECK_BF16(got.k_gradient(), want.dk.value, want.dk.terms, plain.dk.value);
  CHECK_BF16(got.v_gradient(), want.dv.value, want.dv.terms, plain.dv.value);
  CHECK_BF16(got.dq_lanes.values(), want.dq_lanes.value, want.dq_lanes.terms, plain.dq_lanes.value);
  CHECK_BF16(got.dk_lanes.values(), want.dk_lanes.value, want.dk_lanes.terms, plain.dk_lanes.value);
  CHECK_BF16(got.dkey_bias.values(), want.dkey_bias.value, want.dkey_bias.terms, plain.dkey_bias.value);
  check_slope_gradient(reference, got, deterministic);
  got.dqkv.values();  // throws if something was written outside
  CHECK(all_nan(got.unused_gradients()));
}

std::string text_of(const AttentionShape& shape) {
  std::string text;
  const std::pair<const char*, Index> fields[] = {{"B ", shape.batch},        {", T_q ", shape.t_q},
                                                  {", T_k ", shape.t_k},      {", H ", shape.heads},
                                                  {", d_h ", shape.head_dim}, {", d_c ", shape.content_dim},
                                                  {", 2R ", shape.lanes},     {", group ", shape.group}};
  for (const auto& [name, value] : fields) text += name + std::to_string(value);
  return text + (shape.causal ? ", causal" : "") + (shape.slope ? ", slope" : "") +
         (shape.key_bias ? ", key bias" : "");
}

// Forward, then backward in both forms.
void check_problem(Device& device, const AttentionShape& shape, const AttentionProblem& problem,
                   Layout layout = Layout::packed, double largest_logit = 0) {
  INFO(text_of(shape));
  DeviceAttention forward(device, problem, shape.content_dim, shape.lanes, DType::bf16, layout);
  forward.forward();
  const SavedAttention saved{forward.out.values(), forward.lse.values()};
  const References reference(problem, shape, saved, largest_logit);
  for (const bool deterministic : {true, false}) {
    INFO((deterministic ? "deterministic" : "any order"));
    DeviceAttention on_device(device, problem, shape.content_dim, shape.lanes, DType::bf16, layout);
    on_device.out.set(saved.out);
    on_device.lse.set(saved.lse);
    AttentionBackward op = on_device.backward_operation();
    op.deterministic = deterministic;
    device.run(op);
    check_outputs(reference, on_device, deterministic);
  }
}

void check_shape(Device& device, AttentionShape shape, Rng& rng, Layout layout = Layout::packed) {
  shape.dtype = DType::bf16;
  check_problem(device, shape, random_attention(shape, rng), layout);
}

// Calls test(device, rng) on every device that computes in bf16.
template <class Test>
void on_devices(Test test) {
  for (const std::string& name : device_names(DType::bf16)) {
    const auto device = open_tested(name);
    const auto seed = fresh_seed();
    INFO(name << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    test(*device, rng);
  }
}

// The first three where tests are to be short (reduced()), else all.
std::vector<Index> some_of(std::vector<Index> values) {
  if (reduced()) values.resize(3);
  return values;
}

void set_all(std::vector<double>& values, double value) { std::fill(values.begin(), values.end(), value); }

// All results of both passes, the tensors one after the other.
std::vector<double> results_of(Device& device, const AttentionProblem& problem, const AttentionShape& shape) {
  DeviceAttention attention(device, problem, shape.content_dim, shape.lanes, DType::bf16);
  attention.forward();
  attention.backward();
  std::vector<double> all;
  for (const auto& part :
       {attention.out.values(), attention.lse.values(), attention.q_gradient(), attention.k_gradient(),
        attention.v_gradient(), attention.dq_lanes.values(), attention.dk_lanes.values(),
        attention.dkey_bias.values(), attention.dslope.values()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}
}  // namespace

TEST_CASE("bf16 attention: matches float64 at lengths around the tiles' edges", "[attention]") {
  on_devices([](Device& device, Rng& rng) {
    for (const Index length : some_of({1, 65, 129, 2, 17, 63, 64, 100, 127, 128, 200}))
      for (const bool causal : {true, false}) {
        const Index batch = length <= 2 ? 8 : 1;
        check_shape(device, {batch, length, length, 3, 64, 58, 4, causal, rng() % 2 == 0}, rng);
      }
  });
}

TEST_CASE("bf16 attention: matches float64 for every head dimension, with and without lanes", "[attention]") {
  on_devices([](Device& device, Rng& rng) {
    for (const Index head_dim : some_of({20, 40, 128, 8, 24, 32, 64, 96}))
      for (const bool slope : {true, false}) {
        check_shape(device, {1, 70, 70, 1, head_dim, head_dim, 0, true, slope}, rng);
        check_shape(device, {2, 99, 99, 1, head_dim, head_dim - 7, 4, !slope, slope}, rng);
      }
  });
}

TEST_CASE("bf16 attention: matches float64 where queries and keys differ in number", "[attention]") {
  on_devices([](Device& device, Rng& rng) {
    for (const Index t_q : some_of({1, 5, 97, 130}))
      for (const Index t_k : {130, 201})
        for (const bool causal : {true, false})
          check_shape(device, {t_q < 10 ? 4 : 1, t_q, t_k, 2, 32, 26, 4, causal, true}, rng);
    check_shape(device, {1, 130, 7, 3, 32, 26, 4, false, true}, rng);
    check_shape(device, {1, 300, 65, 1, 32, 26, 4, false, true}, rng);
    check_shape(device, {1, 65, 390, 1, 64, 58, 4, true, true}, rng);
  });
}

TEST_CASE("bf16 attention: matches float64 for 2 to 16 lanes at any content dimension", "[attention]") {
  on_devices([](Device& device, Rng& rng) {
    for (const Index lanes : some_of({2, 8, 16, 4, 6, 10, 12, 14})) {
      check_shape(device, {1, 90, 90, 1, 64, 62 - lanes, lanes, true, true}, rng);
      check_shape(device, {1, 90, 90, 1, 32, 16 - static_cast<Index>(rng() % 12), lanes, true, false}, rng);
    }
    check_shape(device, {1, 90, 90, 1, 128, 101, 16, true, true}, rng);
    check_shape(device, {1, 90, 90, 1, 128, 110, 16, false, true}, rng);
  });
}

TEST_CASE("bf16 attention: matches float64 for slopes of either sign, steep and flat", "[attention]") {
  on_devices([](Device& device, Rng& rng) {
    for (const bool causal : {true, false}) {
      const AttentionShape shape{1, 260, 260, 5, 32, 26, 4, causal, true, DType::bf16};
      AttentionProblem problem = random_attention(shape, rng);
      problem.slope = {0.70710678f, 4.0f, 100.0f, 0.0f, -0.25f};
      check_problem(device, shape, problem);
    }
  });
}

TEST_CASE("bf16 attention: matches float64 in other layouts of q, k and v", "[attention]") {
  on_devices([](Device& device, Rng& rng) {
    for (const Index head_dim : {32, 40, 64, 128})
      check_shape(device, {2, 77, 90, 3, head_dim, head_dim - 6, 4, true, true}, rng, Layout::heads_first);
    check_shape(device, {2, 77, 77, 3, 20, 14, 4, true, true}, rng, Layout::heads_first);
  });
}

TEST_CASE("bf16 attention: matches float64 with a key bias, alone, with a slope and with lanes",
          "[attention]") {
  on_devices([](Device& device, Rng& rng) {
    for (const Index head_dim : some_of({64, 40, 128, 32, 8, 96}))
      for (const bool slope : {true, false}) {
        AttentionShape shape{1, 130, 130, 2, head_dim, head_dim, 0, true, slope};
        shape.key_bias = true;
        check_shape(device, shape, rng);
        check_shape(device, shape, rng, Layout::heads_first);
        shape.t_q = slope ? 5 : 70, shape.t_k = slope ? 201 : 333, shape.batch = 2;
        shape.content_dim = head_dim - 7, shape.lanes = 4;
        check_shape(device, shape, rng);
      }
  });
}

TEST_CASE("bf16 attention: a key bias that rises and falls steeply matches float64", "[attention]") {
  on_devices([](Device& device, Rng& rng) {
    AttentionShape shape{1, 260, 260, 3, 32, 26, 4, true, true, DType::bf16};
    shape.key_bias = true;
    AttentionProblem problem = random_attention(shape, rng);
    for (Index j = 0; j < shape.t_k; ++j) {
      problem.key_bias[j] = 40 * static_cast<double>(j);                    // sees the key itself alone
      problem.key_bias[shape.t_k + j] = j < 64 || j % 70 == 0 ? 0 : -1000;  // sees few keys
      problem.key_bias[2 * shape.t_k + j] = -0.25 * static_cast<double>(j % 17) + 3;  // favours early keys
    }
    check_problem(device, shape, problem, Layout::packed, 1000);
  });
}

TEST_CASE("bf16 attention: a constant added to the key bias of a head changes no bit", "[attention]") {
  on_devices([](Device& device, Rng& rng) {
    for (const Index head_dim : {32, 64, 128}) {
      AttentionShape shape{2, 140, 190, 2, head_dim, head_dim - 6, 4, true, true, DType::bf16};
      shape.key_bias = true, shape.group = 2;
      AttentionProblem problem = random_attention(shape, rng);
      for (double& bias : problem.key_bias) bias = std::round(bias * 0x1p20) * 0x1p-20;
      const std::vector<double> results = results_of(device, problem, shape);
      for (std::size_t n = 0; n < problem.key_bias.size(); ++n)
        problem.key_bias[n] += 1e6 * static_cast<double>(1 + n / problem.t_k);
      CHECK((results_of(device, problem, shape) == results));
    }
  });
}

TEST_CASE("bf16 attention: matches float64 where heads share keys and values", "[attention]") {
  on_devices([](Device& device, Rng& rng) {
    for (const Index group : {3, 2, 6})
      for (const Index head_dim : some_of({64, 32, 128, 40})) {
        const bool odd = group != 2;
        AttentionShape shape{1, odd ? 70 : 140, 150, 6, head_dim, head_dim - 6, 4, true, odd};
        shape.group = group;
        check_shape(device, shape, rng);
        shape.key_bias = true, shape.batch = 2;
        check_shape(device, shape, rng, odd ? Layout::heads_first : Layout::packed);
      }
    check_shape(device, {2, 70, 40, 4, 64, 58, 4, false, true, DType::bf16, 2}, rng);
    check_shape(device, {2, 70, 70, 4, 64, 64, 0, true, false, DType::bf16, 4}, rng);
  });
}

TEST_CASE("bf16 attention: matches float64 where logits are near 10,000", "[attention]") {
  on_devices([](Device& device, Rng& rng) {
    for (const Index head_dim : {64, 128})
      for (const bool causal : {true, false}) {
        // Integers, and a power of two as scale: q k^T is exact in fp32, so that what is tested is the
        // softmax and not the products' rounding.
        const AttentionShape shape{1, 140, 140, 2, head_dim, head_dim, 0, causal, false, DType::bf16};
        AttentionProblem problem = random_attention(shape, rng);
        std::uniform_int_distribution<int> digit(-15, 15);
        for (std::vector<double>* values : {&problem.q, &problem.k})
          for (double& value : *values) value = digit(rng);
        for (Index c = 0; c < problem.heads * problem.head_dim; ++c)
          problem.k[c] = problem.q[problem.q.size() - problem.heads * problem.head_dim + c];
        problem.scale = 2;
        const std::vector<double> lse = attention(problem).lse;
        const double largest = *std::max_element(lse.begin(), lse.end());
        CHECK(largest > 8000);
        check_problem(device, shape, problem, Layout::packed, largest);
      }
  });
}

TEST_CASE("bf16 attention: equal keys, a single key, negative zeros, large and zero gradients",
          "[attention]") {
  on_devices([](Device& device, Rng& rng) {
    const AttentionShape shape{1, 90, 90, 2, 64, 58, 4, true, true, DType::bf16},
        one_key{2, 70, 1, 3, 64, 58, 4, false, true, DType::bf16};
    const AttentionProblem random = random_attention(shape, rng);
    AttentionProblem problem = random;
    const Index row = problem.heads * problem.head_dim;
    for (std::size_t n = 0; n < problem.k.size(); ++n) problem.k[n] = problem.k[n % row];
    problem.slope.assign(2, 0);
    check_problem(device, shape, problem);

    check_problem(device, one_key, random_attention(one_key, rng));

    problem = random;
    set_all(problem.q, -0.0);
    for (Index n = 0; n < row; ++n) problem.v[n] = -0.0;
    check_problem(device, shape, problem);

    for (const double factor : {0x1p40, 0x1p-40, 0.0}) {
      problem = random;
      for (double& value : problem.dout) value *= factor;
      check_problem(device, shape, problem);
    }
  });
}

TEST_CASE("bf16 attention: what the optional outputs leave out changes no bit of the others", "[attention]") {
  on_devices([](Device& device, Rng& rng) {
    for (const Index head_dim : {20, 32, 64, 128, 120}) {
      AttentionShape shape{1, 130, 130, 2, head_dim, head_dim - 6, 4, true, true, DType::bf16};
      if (head_dim == 120) shape.group = 2, shape.key_bias = true;
      const AttentionProblem problem = random_attention(shape, rng);
      DeviceAttention whole(device, problem, shape.content_dim, shape.lanes, DType::bf16);
      whole.forward();
      whole.backward();
      for (int left_out = 0; left_out < 5; ++left_out) {
        DeviceAttention partial(device, problem, shape.content_dim, shape.lanes, DType::bf16);
        partial.forward();
        AttentionBackward op = partial.backward_operation();
        const std::pair<Tensor*, const Operand*> optional[] = {{&op.dq_lanes, &partial.dq_lanes},
                                                               {&op.dk_lanes, &partial.dk_lanes},
                                                               {&op.dkey_bias, &partial.dkey_bias},
                                                               {&op.dslope, &partial.dslope}};
        const Operand* written[] = {&whole.dq_lanes, &whole.dk_lanes, &whole.dkey_bias, &whole.dslope};
        for (int which = 0; which < 4; ++which)
          if (left_out == which || left_out == 4) *optional[which].first = Tensor{};
        device.run(op);
        INFO("d_h " << head_dim << ", left out " << left_out << " (4: all)");
        CHECK((partial.q_gradient() == whole.q_gradient()));
        CHECK((partial.k_gradient() == whole.k_gradient()));
        CHECK((partial.v_gradient() == whole.v_gradient()));
        for (int which = 0; which < 4; ++which) {
          const bool absent = left_out == which || left_out == 4;
          CHECK((absent ? all_nan(optional[which].second->values())
                        : optional[which].second->values() == written[which]->values()));
        }
      }
    }
  });
}

TEST_CASE("bf16 attention: the same bits for every order of threads and copies", "[attention]") {
  for (const std::string& name : device_names(DType::bf16)) {
    const auto device = open_tested(name);
    const auto seed = fresh_seed();
    INFO(name << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    for (const Index head_dim : {20, 32, 64, 128}) {
      const AttentionShape shape{1,    140,  140,        head_dim == 32 ? 2 : 1, head_dim, head_dim - 6, 4,
                                 true, true, DType::bf16};
      const AttentionProblem problem = random_attention(shape, rng);
      check_schedules(name, [&] { return results_of(*device, problem, shape); });
      if (head_dim % 8 != 0) continue;
      AttentionShape grouped{1, 140, 140, 2, head_dim, head_dim - 6, 4, true, true, DType::bf16};
      grouped.group = 2, grouped.key_bias = true;
      const AttentionProblem with_bias = random_attention(grouped, rng);
      check_schedules(name, [&] { return results_of(*device, with_bias, grouped); });
    }
  }
}

TEST_CASE("bf16 attention forward: a NaN in a key reaches the rows that see it and no earlier tile",
          "[attention]") {
  on_devices([](Device& device, Rng& rng) {
    AttentionProblem problem = random_attention({1, 400, 400, 1, 32, 32, 0, true, true, DType::bf16}, rng);
    problem.k[270 * 32] = std::numeric_limits<double>::quiet_NaN();
    DeviceAttention on_device(device, problem, 32, 0, DType::bf16);
    on_device.forward();
    const std::vector<double> out = on_device.out.values(), lse = on_device.lse.values();
    CHECK(std::count_if(lse.begin(), lse.end(), [](double value) { return std::isnan(value); }) == 130);
    CHECK(std::none_of(out.begin(), out.begin() + 256 * 32, [](double value) { return std::isnan(value); }));
    CHECK(std::all_of(out.begin() + 270 * 32, out.end(), [](double value) { return std::isnan(value); }));
  });
}

#ifdef GOAT_HAS_SIMT
TEST_CASE("bf16 attention: matches float64 on GPUs of every architecture", "[attention]") {
  for_each_architecture([](Device& device, int architecture, Rng& rng) {
    const Index length = architecture == 86 ? 150 : 70;
    for (const Index head_dim : {32, 64, 128}) {
      check_shape(device, {1, length, length, 1, head_dim, head_dim - 6, 4, true, true}, rng);
      check_shape(device,
                  {1, architecture == 86 ? 70 : 33, length, 1, head_dim, head_dim - 10, 8, false, false},
                  rng);
      check_shape(device,
                  {1, length, length, 2, head_dim, head_dim - 6, 4, true, true, DType::bf16,
                   architecture == 80 ? 1 : 2, true},
                  rng);
    }
  });
}

TEST_CASE("bf16 attention: no two rows of a matrix that ldmatrix reads lie in the same banks",
          "[attention]") {
  if (!simt_is_tested()) return;
  Rng rng(fresh_seed());
  for (const int architecture : {90, 86}) {
    const SimulatedGpu device(architecture);
    for (const Index head_dim : {32, 64, 128}) {
      INFO("sm_" << architecture << ", d_h " << head_dim);
      const AttentionProblem problem =
          random_attention({1, 130, 130, 1, head_dim, head_dim - 6, 4, true, true, DType::bf16}, rng);
      for (const bool deterministic : {true, false}) {
        on_simt::reset_counters();
        DeviceAttention attention(*device, problem, head_dim - 6, 4, DType::bf16);
        attention.forward();
        AttentionBackward op = attention.backward_operation();
        op.deterministic = deterministic;
        (*device).run(op);
        (*device).synchronize();
        const on_simt::Counters counters = on_simt::counters();
        CHECK(counters.matrix_reads > 1000);
        CHECK(counters.conflicting_matrix_reads == 0);
      }
    }
  }
}
#endif
