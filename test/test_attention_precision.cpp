// How exact the prior is through the bf16 attention kernels at long range (goat.md, "Augmented vectors" and
// "Gradients").
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/prior_setup.h"
#include "test/attention_operands.h"
#include "test/attention_prior.h"
#include "test/catch.h"
#include "test/each_variant.h"
#include "test/plain_bf16_attention.h"
#include "test/tested_device.h"
#include "test/values.h"

using namespace goat;
using namespace goat::test;

namespace {
using Index = std::int64_t;

// What the kernels make of the prior's part of single logits.
//
// Content coordinate c of the queries is q_c = 256 in the query rows c, c + d_c, .. and 0 in the others, and
// of the keys -2048 in all but one key j_c: in those rows every key but j_c has a content logit near -10^5,
// far below any slope's term, and j_c has 0. Then lse is the logit of the pair (i, j_c), the prior alone.
struct Probes {
  Index t_q, t_k, head_dim, modes;
  std::vector<double> slopes;  // one head each
  Index content_dim() const { return head_dim - 2 * modes - 2; }
  Index heads() const { return static_cast<Index>(slopes.size()); }
};

// With the lanes and the slope argument as goat.md has them, or with lambda j in a bf16 lane beside a bf16
// 1/sigma as in the authors' package.
enum class Form { lanes_and_slope, all_in_lanes };

struct Errors {
  double in_bounds = 0, absolute = 0;  // the largest error, in units of the bound and in logits
};

class LogitProbe {
 public:
  LogitProbe(Device& device, const Probes& probes, Rng& rng) : device_(device), probes_(probes) {
    for (Index h = 0; h < probes.heads(); ++h) {
      HeadPrior prior = random_prior(rng, probes.modes, probes.t_k, 1);
      for (std::vector<double>* values : {&prior.alpha, &prior.beta, &prior.key_bias})
        *values = rounded_to(DType::f32, *values);
      prior.slope = rounded_to(DType::f32, probes.slopes[h]);
      priors_.push_back(prior);
    }
    problem_ = random_attention({1, probes.t_q, probes.t_k, probes.heads(), probes.head_dim,
                                 probes.content_dim(), 0, true, false, DType::bf16},
                                rng);
    for (const double slope : probes.slopes) problem_.slope.push_back(slope);
    place_probes(rng);
  }

  Errors errors(Form form) {
    const std::vector<double> lse =
        form == Form::lanes_and_slope ? through_lanes_and_slope() : all_in_lanes();
    Errors worst;
    const Positions positions = Positions::sequence(0, probes_.t_k);
    for (Index h = 0; h < probes_.heads(); ++h)
      for (Index row = 0; row < probes_.t_q; ++row) {
        const Index i = problem_.position(row), j = probed(h, row);
        const Index distance = form == Form::lanes_and_slope ? j - i : j;
        const double want = relative_prior(priors_[h], positions, i, j) + priors_[h].key_bias[j] +
                            priors_[h].slope * static_cast<double>(distance);
        const double error = std::abs(lse[h * probes_.t_q + row] - want);
        worst.absolute = std::max(worst.absolute, error);
        worst.in_bounds = std::max(worst.in_bounds, error / logit_bound(priors_[h]));
      }
    return worst;
  }

 private:
  Index probed(Index h, Index row) const {
    return probed_[h * probes_.content_dim() + row % probes_.content_dim()];
  }

  void place_probes(Rng& rng) {
    const Index common = problem_.keys_seen(0);  // every query sees these keys
    for (Index h = 0; h < probes_.heads(); ++h)
      for (Index c = 0; c < probes_.content_dim(); ++c)
        probed_.push_back(c == 0 ? 0 : c == 1 ? common - 1 : static_cast<Index>(rng() % common));
    for (Index h = 0; h < probes_.heads(); ++h)
      for (Index c = 0; c < probes_.content_dim(); ++c) {
        for (Index row = 0; row < probes_.t_q; ++row)
          problem_.q[(row * probes_.heads() + h) * probes_.head_dim + c] =
              row % probes_.content_dim() == c ? 256 : 0;
        for (Index j = 0; j < probes_.t_k; ++j)
          problem_.k[(j * probes_.heads() + h) * probes_.head_dim + c] =
              j == probed_[h * probes_.content_dim() + c] ? 0 : -2048;
      }
  }

  // alpha, beta or the key bias of all heads, as an operand.
  Operand of_heads(std::vector<double> HeadPrior::*field, Index columns, const char* name) {
    std::vector<double> values;
    for (const HeadPrior& prior : priors_)
      values.insert(values.end(), (prior.*field).begin(), (prior.*field).end());
    return Operand::of(device_, values, {probes_.heads(), columns}, name);
  }

  void write_lanes(const AttentionForward& attention) {
    std::vector<double> positions(probes_.t_k);
    std::iota(positions.begin(), positions.end(), 0);
    const Operand frequency =
                      Operand::of(device_, priors_[0].frequency, {probes_.modes}, "frequency", DType::f64),
                  rows = Operand::of(device_, positions, {probes_.t_k, 1}, "positions", DType::i32),
                  fourier(device_, DType::f32, {probes_.t_k, probes_.modes, 2}, "fourier"),
                  alpha = of_heads(&HeadPrior::alpha, probes_.modes, "alpha"),
                  beta = of_heads(&HeadPrior::beta, probes_.modes, "beta"),
                  key_bias = of_heads(&HeadPrior::key_bias, probes_.t_k, "key_bias");
    device_.run(FourierTable{fourier, frequency, rows});
    PriorLanesForward op;
    op.q = attention.q;
    op.alpha = alpha, op.beta = beta, op.key_bias = key_bias, op.fourier = fourier;
    op.content_dim = probes_.content_dim();
    op.first_position = probes_.t_k - probes_.t_q;
    op.scale = attention.scale;
    device_.run(op);
    op.q = Tensor{};
    op.k = attention.k;
    op.first_position = 0;
    device_.run(op);
  }

  std::vector<double> through_lanes_and_slope() {
    DeviceAttention on_device(device_, problem_, probes_.content_dim(), 0, DType::bf16);
    write_lanes(on_device.forward_operation());
    on_device.forward();
    return on_device.lse.values();
  }

  std::vector<double> all_in_lanes() {
    AttentionProblem problem = with_lanes(problem_, priors_, probes_.content_dim(), DType::bf16);
    problem.slope.clear();
    const Index first_bias = probes_.content_dim() + 2 * probes_.modes;
    for (Index row = 0; row < probes_.t_q * probes_.heads(); ++row) {
      double* lanes = &problem.q[row * probes_.head_dim + first_bias];
      lanes[0] = 1 / problem.scale, lanes[1] = 0;
    }
    for (Index row = 0; row < probes_.t_k * probes_.heads(); ++row) {
      const HeadPrior& prior = priors_[row % probes_.heads()];
      const Index j = row / probes_.heads();
      problem.k[row * probes_.head_dim + first_bias] =
          prior.key_bias[j] + prior.slope * static_cast<double>(j);
    }
    DeviceAttention on_device(device_, problem, probes_.content_dim(), 0, DType::bf16);
    on_device.forward();
    return on_device.lse.values();
  }

  Device& device_;
  Probes probes_;
  std::vector<HeadPrior> priors_;
  AttentionProblem problem_;
  std::vector<Index> probed_;
};

void check_logits(Index t_q, Index modes, const std::vector<double>& slopes) {
  constexpr Index head_dim = 32;
  const Index length = reduced() ? 4096 : 32768;
  for (const std::string& name : device_names(DType::bf16)) {
    const auto device = open_tested(name);
    const auto seed = fresh_seed();
    INFO(name << ", GOAT_TEST_SEED=" << seed << ", T_q " << t_q << ", R " << modes);
    Rng rng(seed);
    LogitProbe probe(*device, {t_q, length, head_dim, modes, slopes}, rng);
    const Errors errors = probe.errors(Form::lanes_and_slope);
    INFO("worst error " << errors.in_bounds << " of the bound, " << errors.absolute << " logits");
    CHECK(errors.in_bounds <= 1);
    if (reduced()) continue;  // the lanes would do
    const Errors in_lanes = probe.errors(Form::all_in_lanes);
    INFO("all in lanes: worst error " << in_lanes.in_bounds << " of the bound, " << in_lanes.absolute
                                      << " logits");
    CHECK(in_lanes.in_bounds > 10);
    if (*std::max_element(slopes.begin(), slopes.end()) > 0.7)
      CHECK(in_lanes.absolute > 10);  // j lambda is in steps of 128
  }
}
}  // namespace

TEST_CASE(
    "attention precision: a query's prior logits are within the bound at T=32768 for ALiBi slopes, in bf16 "
    "lanes alone not",
    "[attention]") {
  const std::vector<double> slopes = alibi_slopes(12);
  const Index modes[] = {1, 2, 4, 8};
  for (std::size_t n = 0; n < 4; ++n) check_logits(3, modes[n], {slopes[n], slopes[n + 4], slopes[n + 8]});
}

TEST_CASE(
    "attention precision: a tile's prior logits are within the bound at T=32768 for ALiBi slopes, in bf16 "
    "lanes alone not",
    "[attention]") {
  const std::vector<double> slopes = alibi_slopes(12);
  for (const Index modes : {1, 2, 4, 8})
    check_logits(128, modes, {*std::max_element(slopes.begin(), slopes.end())});
}

namespace {
// sum_ij bf16(dS_ij) (j - i') of each head: d lambda, were dS rounded to bf16 before it is summed.
std::vector<double> dlambda_from_packed(const AttentionProblem& problem) {
  const AttentionValues values = attention(problem);
  const Index width = problem.head_dim;
  std::vector<double> dlambda(problem.heads);
  for (Index n = 0; n < problem.batch * problem.heads * problem.t_q; ++n) {
    const Index i = n % problem.t_q, h = n / problem.t_q % problem.heads, b = n / problem.t_q / problem.heads;
    const Index row = ((b * problem.t_q + i) * problem.heads + h) * width;
    const double delta =
        std::inner_product(&problem.dout[row], &problem.dout[row] + width, &values.out.value[row], 0.0);
    for (Index j = 0; j < problem.keys_seen(i); ++j) {
      const double* v = &problem.v[((b * problem.t_k + j) * problem.heads + h) * width];
      const double s =
          values.p[n * problem.t_k + j] * (std::inner_product(v, v + width, &problem.dout[row], 0.0) - delta);
      dlambda[h] += rounded_to(DType::bf16, s) * static_cast<double>(j - problem.position(i));
    }
  }
  return dlambda;
}

double relative_error(const std::vector<double>& got, const std::vector<double>& want) {
  double difference = 0, norm = 0;
  for (std::size_t n = 0; n < want.size(); ++n)
    difference += (got[n] - want[n]) * (got[n] - want[n]), norm += want[n] * want[n];
  return std::sqrt(difference / norm);
}

// Attention of `length` positions with a prior in lanes, slopes of either sign and a strong sink, as the
// trainer would run it.
AttentionProblem attention_with_prior(const AttentionShape& shape, Rng& rng) {
  AttentionProblem problem = random_attention(shape, rng);
  std::vector<HeadPrior> priors;
  problem.slope = {0.5f, 0.0625f, 0.00390625f, -0.0009765625f};
  for (Index h = 0; h < shape.heads; ++h) {
    priors.push_back(random_prior(rng, shape.lanes / 2, shape.t_k, 0.5));
    priors.back().key_bias[0] += 4;
  }
  return with_lanes(problem, priors, shape.content_dim, DType::bf16);
}
}  // namespace

TEST_CASE(
    "attention precision: d lambda and d b are within 1e-3 of float64 at T=1000 in bf16, nearer than from a "
    "packed dS",
    "[attention]") {
  for_each_device(DType::bf16, [](Device& device, Rng& rng) {
    const Index length = reduced() ? 300 : 1000;
    const AttentionShape shape{1, length, length, 4, 32, 26, 4, true, true, DType::bf16};
    const AttentionProblem problem = attention_with_prior(shape, rng);
    const AttentionGradients want = attention_gradients(problem);
    const std::vector<double> dlambda = sum_per_head(want.dslope.value, shape.batch, shape.heads);
    const std::vector<double> db = sum_per_head(want.dkey_bias.value, shape.batch, shape.heads, 1);

    DeviceAttention on_device(device, problem, shape.content_dim, shape.lanes, DType::bf16);
    on_device.forward();
    on_device.backward();
    const double error =
        relative_error(sum_per_head(on_device.dslope.values(), shape.batch, shape.heads), dlambda);
    CHECK(error < 1e-3);
    CHECK(relative_error(sum_per_head(on_device.dkey_bias.values(), shape.batch, shape.heads, 1), db) < 1e-3);
    CHECK(relative_error(dlambda_from_packed(problem), dlambda) > 3 * error);
  });
}

TEST_CASE(
    "attention precision: a slope lambda (j - i) gives the same attention as lambda j in two bf16 lanes at "
    "T=200",
    "[attention]") {
  for_each_device(DType::bf16, [](Device& device, Rng& rng) {
    const Index content = 26, length = 200;
    AttentionProblem problem =
        random_attention({1, length, length, 3, 32, content, 4, true, false, DType::bf16}, rng);
    std::vector<HeadPrior> priors;
    for (const double slope : {0.5, 0.125, -0.0625}) {
      priors.push_back(random_prior(rng, 2, length, 0));
      priors.back().slope = slope;
    }
    const AttentionProblem key_linear = with_lanes(problem, priors, content, DType::bf16);
    for (HeadPrior& prior : priors) problem.slope.push_back(std::exchange(prior.slope, 0));
    const AttentionProblem lag_linear = with_lanes(problem, priors, content, DType::bf16);
    const AttentionValues want = attention(lag_linear);
    const AttentionOutputs plain = plain_bf16_attention(lag_linear, content, 4, {want.out.value, want.lse});
    for (const AttentionProblem& form : {key_linear, lag_linear}) {
      DeviceAttention on_device(device, form, content, 4, DType::bf16);
      on_device.forward();
      CHECK_BF16(on_device.out.values(), want.out.value, want.out.terms, plain.out.value);
    }
  });
}

namespace {
// The bias of a head's keys from gates f: key_bias_j = -sum_{l <= j} log f_l.
void append_bias(std::vector<double>& key_bias, const std::vector<double>& gates) {
  double bias = 0;
  for (const double gate : gates) key_bias.push_back(bias -= std::log(gate));
}

// Two heads that share a head of k and v: one whose gates are all 0.5, and one whose gates are random between
// 1e-4 and 0.9999.
std::vector<double> bias_of_gates(Index keys, Rng& rng) {
  std::vector<double> key_bias, gates(keys, 0.5);
  append_bias(key_bias, gates);
  std::uniform_real_distribution<double> logit(-9.21, 9.21);
  for (double& gate : gates) gate = 1 / (1 + std::exp(-logit(rng)));
  append_bias(key_bias, gates);
  return key_bias;
}

void set_all(std::vector<double>& values, double value) { std::fill(values.begin(), values.end(), value); }

AttentionShape far_shape(Index t_q, Index head_dim, bool slope) {
  AttentionShape shape{1, t_q, reduced() ? 4096 : 32768, 2, head_dim, head_dim, 0, true, slope, DType::bf16};
  shape.group = 2, shape.key_bias = true;
  return shape;
}

// Query row c has content coordinate c alone, in which every key but one has a logit near -10^5. Then lse is
// the logit of this key. It is one whose weight can exceed 1e-12: within 40 keys.
void isolate_keys(AttentionProblem& problem, std::vector<Index>& isolated, Rng& rng) {
  set_all(problem.q, 0), set_all(problem.k, -2048);
  for (Index row = 0; row < problem.t_q; ++row) {
    isolated.push_back(problem.position(row) - static_cast<Index>(rng() % 40));
    for (Index h = 0; h < problem.heads; ++h)
      problem.q[(row * problem.heads + h) * problem.head_dim + row] = 256;
    problem.k[isolated.back() * problem.head_dim + row] = 0;
  }
}
}  // namespace

TEST_CASE(
    "attention precision: the logits of a key bias are within 0.003 of float64 at T=32768 where weights "
    "exceed 1e-12",
    "[attention]") {
  for_each_device(DType::bf16, [](Device& device, Rng& rng) {
    const AttentionShape shape = far_shape(60, 64, true);
    AttentionProblem problem = random_attention(shape, rng);
    problem.key_bias = bias_of_gates(shape.t_k, rng);
    std::vector<Index> isolated;
    isolate_keys(problem, isolated, rng);
    DeviceAttention on_device(device, problem, shape.content_dim, 0, DType::bf16);
    on_device.forward();
    const std::vector<double> lse = on_device.lse.values();
    double worst = 0;
    for (Index h = 0; h < shape.heads; ++h)
      for (Index row = 0; row < shape.t_q; ++row) {
        const Index i = problem.position(row), j = isolated[row];
        const double want = problem.key_bias[h * shape.t_k + j] - problem.key_bias[h * shape.t_k + i] +
                            problem.slope[h] * static_cast<double>(j - i);
        if (want > std::log(1e-12)) worst = std::max(worst, std::abs(lse[h * shape.t_q + row] - want));
      }
    INFO("worst error " << worst << " logits");
    CHECK(worst > 0);
    CHECK(worst < 0.003);
  });
}

TEST_CASE("attention precision: with a key bias both passes match float64 at T=32768", "[attention]") {
  for_each_device(DType::bf16, [](Device& device, Rng& rng) {
    const AttentionShape shape = far_shape(9, 32, false);
    AttentionProblem problem = random_attention(shape, rng);
    problem.key_bias = bias_of_gates(shape.t_k, rng);
    DeviceAttention on_device(device, problem, shape.content_dim, 0, DType::bf16);
    on_device.forward();
    on_device.backward();
    const AttentionOutputs want = attention_outputs(problem, shape.content_dim, 0);
    const AttentionOutputs plain =
        plain_bf16_attention(problem, shape.content_dim, 0, {on_device.out.values(), on_device.lse.values()});
    CHECK_BF16(on_device.out.values(), want.out.value, want.out.terms, plain.out.value);
    CHECK_BF16(on_device.q_gradient(), want.dq.value, want.dq.terms, plain.dq.value);
    CHECK_BF16(on_device.k_gradient(), want.dk.value, want.dk.terms, plain.dk.value);
    CHECK_BF16(on_device.v_gradient(), want.dv.value, want.dv.terms, plain.dv.value);
    CHECK_BF16(on_device.dkey_bias.values(), want.dkey_bias.value, want.dkey_bias.terms,
               plain.dkey_bias.value);
  });
}
