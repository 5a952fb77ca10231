// What goat.md's theory says about attention with a prior, through the kernels.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/prior_setup.h"
#include "test/attention_operands.h"
#include "test/attention_prior.h"
#include "test/catch.h"
#include "test/each_variant.h"
#include "test/tested_device.h"
#include "test/values.h"

using namespace goat;
using namespace goat::test;

namespace {
using Index = std::int64_t;

// The first `count` of every `stride` values.
std::vector<double> leading(const std::vector<double>& values, Index stride, Index count) {
  std::vector<double> kept;
  for (std::size_t n = 0; n < values.size(); ++n)
    if (static_cast<Index>(n) % stride < count) kept.push_back(values[n]);
  return kept;
}

// max - min over the keys that query i sees of the content logits.
double content_range(const AttentionProblem& problem, Index i, Index content_dim) {
  double lowest = HUGE_VAL, highest = -HUGE_VAL;
  for (Index j = 0; j < problem.keys_seen(i); ++j) {
    double s = 0;
    for (Index c = 0; c < content_dim; ++c)
      s += problem.scale * problem.q[i * problem.head_dim + c] * problem.k[j * problem.head_dim + c];
    lowest = std::min(lowest, s), highest = std::max(highest, s);
  }
  return highest - lowest;
}

double log_sigmoid(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }

// The key bias [B, H, T] that the device makes of gates [B, T, H].
std::vector<double> bias_of_gates(Device& device, const AttentionProblem& problem,
                                  const std::vector<double>& gates) {
  const auto gate = Operand::of(device, gates, {problem.batch, problem.t_k, problem.heads}, "gate");
  const Operand bias(device, DType::f64, {problem.batch, problem.heads, problem.t_k}, "key_bias");
  device.run(ForgetBiasForward{bias, gate, 0});
  return bias.values();
}

// All results of both passes.
std::vector<std::vector<double>> results_of(Device& device, const AttentionProblem& problem,
                                            Index content_dim, Index lanes) {
  DeviceAttention attention(device, problem, content_dim, lanes);
  attention.forward();
  attention.backward();
  return {attention.out.values(),      attention.lse.values(),       attention.q_gradient(),
          attention.k_gradient(),      attention.v_gradient(),       attention.dq_lanes.values(),
          attention.dk_lanes.values(), attention.dkey_bias.values(), attention.dslope.values()};
}

// How far the kernels' logits are from s_ij + key_bias_j - key_bias_i', at most, for a query at each of the
// last `probes` positions and a key whose weight is not negligible. Query c has content e_c, and coordinate c
// of every key but one is far below zero: lse is that key's logit.
double worst_logit(Device& device, const std::vector<double>& key_bias, Index probes, Rng& rng) {
  const auto length = static_cast<Index>(key_bias.size());
  AttentionProblem problem = random_attention({1, probes, length, 1, 16, 16, 0, true, false}, rng);
  problem.key_bias = key_bias;
  std::vector<Index> probed;
  for (Index c = 0; c < probes; ++c) {
    for (Index other = 0; other < 16; ++other) problem.q[c * 16 + other] = other == c ? 1 : 0;
    for (Index j = 0; j < length; ++j) problem.k[j * 16 + c] = -1e30;
    const Index i = problem.position(c);
    Index j = i - static_cast<Index>(rng() % 40);
    while (key_bias[i] - key_bias[j] > 27) ++j;  // e^-27 < 1e-11
    probed.push_back(j);
    problem.k[j * 16 + c] = 0;
  }
  DeviceAttention on_device(device, problem, 16, 0);
  on_device.forward();
  const std::vector<double> lse = on_device.lse.values();
  double worst = 0;
  for (Index c = 0; c < probes; ++c) {
    const double error = std::abs(lse[c] - (key_bias[probed[c]] - key_bias[problem.position(c)]));
    worst = error <= worst ? worst : error;
  }
  return worst;
}
}  // namespace

TEST_CASE(
    "attention theory: augmented vectors through plain attention give the additive prior, forward and "
    "backward",
    "[attention]") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    for (const Index modes : {1, 2, 4, 8}) {
      const Index content = 40 - 2 * modes - 2, length = 131;
      AttentionProblem problem =
          random_attention({2, length, length, 2, 40, content, 2 * modes, true, false}, rng);
      std::vector<HeadPrior> priors{random_prior(rng, modes, length, 1), random_prior(rng, modes, length, 1)};
      priors[0].slope = 0.02;
      const AttentionProblem oracle = with_bias(problem, priors, content);
      const AttentionProblem augmented = with_lanes(problem, priors, content);
      DeviceAttention on_device(device, augmented, content, 2 * modes);
      on_device.forward();
      on_device.backward();
      const AttentionValues want = attention(oracle);
      CHECK_FP32(on_device.out.values(), want.out.value, want.out.terms);
      CHECK_FP32(on_device.lse.values(), want.lse, want.lse_terms);
      const AttentionGradients gradients = attention_gradients(oracle);
      CHECK_FP32(on_device.v_gradient(), gradients.dv.value, gradients.dv.terms);
      CHECK_FP32(on_device.dkey_bias.values(), gradients.dkey_bias.value, gradients.dkey_bias.terms);
      CHECK_FP32(sum_per_head(on_device.dslope.values(), 2, 2), sum_per_head(gradients.dslope.value, 2, 2),
                 sum_per_head(gradients.dslope.terms, 2, 2));
    }
  });
}

TEST_CASE("attention theory: a slope lambda (j - i) gives the same attention as a key bias lambda j",
          "[attention]") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    const Index content = 26, length = 190;
    AttentionProblem problem = random_attention({1, length, length, 3, 32, content, 4, true, false}, rng);
    std::vector<HeadPrior> priors;
    for (const double slope : {0.5, 0.125, -0.0625}) {
      priors.push_back(random_prior(rng, 2, length, 0));
      priors.back().slope = slope;
    }
    const AttentionValues key_linear = attention(with_bias(problem, priors, content));
    DeviceAttention by_lanes(device, with_lanes(problem, priors, content), content, 4);
    by_lanes.forward();
    CHECK_FP32(by_lanes.out.values(), key_linear.out.value, key_linear.out.terms);

    for (HeadPrior& prior : priors) problem.slope.push_back(std::exchange(prior.slope, 0));
    const AttentionProblem lag_linear = with_lanes(problem, priors, content);
    DeviceAttention by_slope(device, lag_linear, content, 4);
    by_slope.forward();
    CHECK_FP32(by_slope.out.values(), key_linear.out.value, key_linear.out.terms);
  });
}

TEST_CASE(
    "attention theory: zero lanes are attention on d_c content dimensions, bit for bit, forward and backward",
    "[attention]") {
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    INFO(name << " " << name_of(dtype));
    Rng rng(fresh_seed());
    const Index length = 150, width = 64;
    // The tensor-core kernels take head dimensions in eights, and one kernel those from 33 to 64.
    for (const Index content :
         dtype == DType::bf16 ? std::vector<Index>{56, 48, 40} : std::vector<Index>{58, 48, 33}) {
      AttentionProblem padded =
          random_attention({1, length, length, 2, width, content, 0, true, false, dtype}, rng);
      for (std::vector<double>* values : {&padded.q, &padded.k, &padded.dout})
        for (std::size_t n = 0; n < values->size(); ++n)
          if (static_cast<Index>(n) % width >= content) (*values)[n] = 0;
      AttentionProblem narrow = padded;
      narrow.head_dim = content;
      for (std::vector<double>* values : {&narrow.q, &narrow.k, &narrow.v, &narrow.dout})
        *values = leading(*values, width, content);

      DeviceAttention in_lanes(*device, padded, content, 0, dtype), alone(*device, narrow, content, 0, dtype);
      for (DeviceAttention* attention : {&in_lanes, &alone}) {
        attention->forward();
        attention->backward();
      }
      CHECK((leading(in_lanes.out.values(), width, content) == alone.out.values()));
      CHECK((in_lanes.lse.values() == alone.lse.values()));
      CHECK((leading(in_lanes.q_gradient(), width, content) == alone.q_gradient()));
      CHECK((leading(in_lanes.k_gradient(), width, content) == alone.k_gradient()));
      CHECK((leading(in_lanes.v_gradient(), width, content) == alone.v_gradient()));
    }
  }
}

TEST_CASE(
    "attention theory: pi e^-w <= p <= pi e^w for content of range w, and p -> pi as w -> 0 (Theorem 1)",
    "[attention]") {
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    const auto seed = fresh_seed();
    INFO(name << " " << name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    const Index length = 48, width = 64, content = 58;
    const AttentionProblem random =
        random_attention({1, length, length, 1, width, content, 4, true, false, dtype}, rng);
    std::vector<HeadPrior> prior{random_prior(rng, 2, length, 1)};
    prior[0].slope = 0.03;
    const double slack = dtype == DType::bf16 ? std::exp(2 * logit_bound(prior[0])) * (1 + 0x1p-7) - 1
                                              : 1e-5;  // p and out are rounded to bf16
    for (const double strength : {1.0, 0.1, 1e-3, 0.0}) {
      AttentionProblem problem = random;
      for (double& value : problem.q) value = rounded_to(dtype, strength * value);
      AttentionProblem no_content = with_bias(problem, prior, content);
      no_content.q.assign(no_content.q.size(), 0);
      const std::vector<double> pi = attention(no_content).p,
                                p = attention_matrix(*device, with_lanes(problem, prior, content, dtype),
                                                     dtype);
      for (Index i = 0; i < length; ++i) {
        const double w = content_range(problem, i, content);
        double lowest = HUGE_VAL, highest = 0;  // p / pi
        for (Index j = 0; j <= i; ++j) {
          lowest = std::min(lowest, p[i * length + j] / pi[i * length + j]);
          highest = std::max(highest, p[i * length + j] / pi[i * length + j]);
        }
        INFO("content times " << strength << ", row " << i << ", w = " << w);
        CHECK(lowest >= std::exp(-w) / (1 + slack));
        CHECK(highest <= std::exp(w) * (1 + slack));
      }
    }
  }
}

TEST_CASE(
    "attention theory: a sink above the other keys by delta leaves them at most (L-1)/(e^delta + L-1) "
    "(Theorem 2)",
    "[attention]") {
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    const auto seed = fresh_seed();
    INFO(name << " " << name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    const double slack = dtype == DType::bf16 ? 0x1p-7 : 1e-5;  // p and out are rounded
    const Index length = 60, width = 64, content = 60;
    AttentionProblem problem =
        random_attention({1, length, length, 1, width, content, 2, true, false, dtype}, rng);
    problem.q.assign(problem.q.size(), 0);
    std::uniform_real_distribution<double> below(0, 2);
    for (const double margin : {0.0, 1.0, 4.0, 10.0})
      for (const bool flat : {true, false}) {
        HeadPrior prior{{0}, {0}, {1}, 0, std::vector<double>(length)};
        prior.key_bias[0] = margin;
        for (Index j = 1; j < length; ++j) prior.key_bias[j] = flat ? 0 : -below(rng);
        const std::vector<double> p =
            attention_matrix(*device, with_lanes(problem, {prior}, content, dtype), dtype);
        for (Index i = 1; i < length; ++i) {
          double others = 0;
          for (Index j = 1; j <= i; ++j) others += p[i * length + j];
          const double bound = static_cast<double>(i) / (std::exp(margin) + static_cast<double>(i));
          INFO("delta " << margin << ", L " << i + 1);
          CHECK(others <= bound * (1 + slack));
          if (flat) CHECK(others >= bound * (1 - slack));  // equality where all others are alike
        }
      }
  }
}

TEST_CASE(
    "attention theory: a prior of the keys alone has rank one: every query weighs them alike, bit for bit",
    "[attention]") {
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    INFO(name << " " << name_of(dtype));
    Rng rng(fresh_seed());
    const Index length = 60, width = 64, content = 60;
    AttentionProblem problem =
        random_attention({1, length, length, 1, width, content, 2, false, false, dtype}, rng);
    problem.q.assign(problem.q.size(), 0);
    HeadPrior prior{{0}, {0}, {1}, 0.01, random_prior(rng, 1, length, 1).key_bias};
    const std::vector<double> p =
        attention_matrix(*device, with_lanes(problem, {prior}, content, dtype), dtype);
    for (Index i = 1; i < length; ++i)
      CHECK(std::equal(p.begin(), p.begin() + length, p.begin() + i * length));
    CHECK(*std::max_element(p.begin(), p.end()) > 2.0 / length);
  }
}

TEST_CASE(
    "attention theory: the prior's part of a logit is within 0.003 + 0.008 sum of amplitudes at T=32768 for "
    "ALiBi slopes",
    "[attention]") {
  constexpr Index length = 32768, content = 14;
  const std::vector<double> slopes =
      reduced() ? std::vector{alibi_slopes(12).front(), alibi_slopes(12).back()} : alibi_slopes(12);
  for (const std::string& name : device_names())
    for (const Index modes : reduced() ? std::vector<Index>{1, 8} : std::vector<Index>{1, 2, 4, 8}) {
      const auto device = open_tested(name);
      const auto seed = fresh_seed();
      INFO(name << ", GOAT_TEST_SEED=" << seed << ", R " << modes);
      Rng rng(seed);
      double worst = 0;  // error in units of the bound
      for (const double slope : slopes) {
        // Probe c: query c has content e_c, and coordinate c of every key but one is far below zero. Only
        // that key's logit is left: lse is it.
        const HeadPrior prior = random_prior(rng, modes, length, 1);
        AttentionProblem problem =
            random_attention({1, content, length, 1, content + 2 * modes + 2, content, 0, true, false}, rng);
        problem.slope = {static_cast<float>(slope)};
        problem = with_lanes(problem, {prior}, content);
        std::vector<Index> probed;
        for (Index c = 0; c < content; ++c) {
          for (Index other = 0; other < content; ++other)
            problem.q[c * problem.head_dim + other] = other == c ? 1 : 0;
          for (Index j = 0; j < length; ++j) problem.k[j * problem.head_dim + c] = -1e30;
          probed.push_back(c == 0 ? 0 : static_cast<Index>(rng() % problem.keys_seen(c)));
          problem.k[probed[c] * problem.head_dim + c] = 0;
        }
        DeviceAttention on_device(*device, problem, content, 0);
        on_device.forward();
        const std::vector<double> lse = on_device.lse.values();
        const Positions positions = Positions::sequence(0, length);
        for (Index c = 0; c < content; ++c) {
          const Index i = problem.position(c), j = probed[c];
          const double want = relative_prior(prior, positions, i, j) + prior.key_bias[j] +
                              problem.slope[0] * static_cast<double>(j - i);
          worst = std::max(worst, std::abs(lse[c] - want) / logit_bound(prior));
        }
      }
      INFO("worst error " << worst << " of the bound");
      CHECK(worst <= 1);
    }
}

TEST_CASE(
    "attention theory: with the bias of forget gates p_ij is proportional to exp(s_ij) times the gates after "
    "j "
    "up to i",
    "[attention]") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    const Index length = 150, heads = 4;
    AttentionProblem problem =
        random_attention({1, length, length, heads, 24, 20, 2, true, false, DType::f32, 2}, rng);
    std::normal_distribution<float> normal(2, 2);
    std::vector<double> gates(static_cast<std::size_t>(length * heads));
    for (double& gate : gates) gate = normal(rng);
    AttentionProblem oracle = problem;
    oracle.bias.assign(static_cast<std::size_t>(heads * length * length), 0);
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < length; ++i) {
        double remembered = 0;  // the log of the product
        for (Index j = i; j >= 0; --j) {
          oracle.bias[(h * length + i) * length + j] = remembered;
          remembered += log_sigmoid(gates[j * heads + h]);
        }
      }
    problem.key_bias = bias_of_gates(device, problem, gates);
    DeviceAttention on_device(device, problem, 20, 2);
    on_device.forward();
    on_device.backward();
    const AttentionOutputs want = attention_outputs(oracle, 20, 2);
    CHECK_FP32(on_device.out.values(), want.out.value, want.out.terms);
    CHECK_FP32(on_device.lse.values(), want.lse.value);
    CHECK_FP32(on_device.q_gradient(), want.dq.value, want.dq.terms);
    CHECK_FP32(on_device.k_gradient(), want.dk.value, want.dk.terms);
    CHECK_FP32(on_device.v_gradient(), want.dv.value, want.dv.terms);
    CHECK_FP32(on_device.dkey_bias.values(), want.dkey_bias.value, want.dkey_bias.terms);
  });
}

TEST_CASE("attention theory: gates that never change give a slope of -log sigmoid", "[attention]") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    const Index length = 190;
    AttentionProblem problem = random_attention({1, length, length, 3, 32, 26, 4, true, false}, rng);
    const std::vector<double> head_gates = {0, 3, -2};
    std::vector<double> gates;
    for (Index t = 0; t < length; ++t) gates.insert(gates.end(), head_gates.begin(), head_gates.end());
    AttentionProblem by_slope = problem;
    for (const double gate : head_gates)
      by_slope.slope.push_back(static_cast<double>(static_cast<float>(-log_sigmoid(gate))));
    problem.key_bias = bias_of_gates(device, problem, gates);
    const auto got = results_of(device, problem, 26, 4), want = results_of(device, by_slope, 26, 4);
    for (std::size_t which = 0; which < got.size() - 1; ++which) CHECK_FP32(got[which], want[which]);
  });
}

TEST_CASE("attention theory: gates that are wide open give the bits of attention without a key bias",
          "[attention]") {
  for (const std::string& name : device_names()) {
    const auto device = open_tested(name);
    Rng rng(fresh_seed());
    for (const bool slope : {false, true})
      for (const Index group : {1, 2})
        for (const auto& [t_q, t_k] : {std::pair<Index, Index>{131, 131}, {70, 200}, {2, 300}}) {
          INFO(name << ", T_q " << t_q << ", T_k " << t_k << ", " << group << " heads a group");
          AttentionProblem problem =
              random_attention({2, t_q, t_k, 2, 32, 26, 4, true, slope, DType::f32, group}, rng);
          const auto without = results_of(*device, problem, 26, 4);
          problem.key_bias = bias_of_gates(*device, problem,
                                           std::vector<double>(static_cast<std::size_t>(2 * t_k * 2), 1e4));
          CHECK((results_of(*device, problem, 26, 4) == without));
        }
  }
}

TEST_CASE(
    "attention theory: logits with forget gates are within 0.003 of float64 at T=32768, within 1e-4 for "
    "gates "
    "of a half",
    "[attention]") {
  const Index length = reduced() ? 8192 : 32768;
  for_each_device(DType::f32, [&](Device& device, Rng& rng) {
    AttentionProblem shape;
    shape.t_k = length;
    std::uniform_real_distribution<double> forgets(1e-4, 0.9999);
    std::vector<double> halves(static_cast<std::size_t>(length)), mixed(halves);
    for (double& gate : mixed) {
      const double f = forgets(rng);
      gate = static_cast<float>(std::log(f / (1 - f)));
    }
    const std::vector<double> half_bias = bias_of_gates(device, shape, halves),
                              mixed_bias = bias_of_gates(device, shape, mixed);
    CHECK(half_bias.back() == Approx(static_cast<double>(length) * std::log(2.0)).epsilon(1e-12));
    for (const Index probes : {1, 4, 16}) {  // 1 and 4: the decode form
      INFO(probes << " queries");
      CHECK(worst_logit(device, half_bias, probes, rng) < 1e-4);
      CHECK(worst_logit(device, mixed_bias, probes, rng) < 0.003);
    }
  });
}
