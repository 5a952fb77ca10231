// The gradients of the prior's parameters against the float64 oracle.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/prior_setup.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/prior_operands.h"
#include "test/prior_oracle.h"
#include "test/schedules.h"
#include "test/tested_device.h"
#include "test/values.h"

using namespace goat;
using namespace goat::test;

namespace {
struct GradientShape {
  std::int64_t batch, heads, modes;
  Positions positions;
  bool softmax_rows = false;  // rows of dS add up to 0, as those of a softmax do
};

// An arbitrary dS = dL/dz [B, H, T, T] and what AttentionBackward would make of it: dA_i = sum_j dS_ij c_j,
// dC_j = sum_i dS_ij a_i, dslope_j = sum_i dS_ij (j - i). The oracle of the gradients is the numerical
// derivative of L = sum_bhij dS_ij K_ij.
struct LaneGradients {
  std::vector<HeadPrior> heads;
  Positions positions;
  std::vector<std::vector<double>> batch_sum;             // for each head dS [T, T] summed over the batch
  std::vector<double> query_lanes, key_lanes, key_slope;  // [B, H, T, 2R], [B, H, T, 2R], [B, H, T]

  LaneGradients(Rng& rng, std::vector<HeadPrior> priors, const GradientShape& shape)
      : heads(std::move(priors)), positions(shape.positions) {
    const std::int64_t rows = positions.rows();
    batch_sum.assign(heads.size(), std::vector<double>(static_cast<std::size_t>(rows * rows)));
    for (std::int64_t b = 0; b < shape.batch; ++b)
      for (std::size_t h = 0; h < heads.size(); ++h) {
        const std::vector<double> s = random_gradient(rng, rows, shape.softmax_rows);
        add_products(heads[h], s);
        batch_sum[h] = plus(batch_sum[h], s);
      }
  }

  static std::vector<double> random_gradient(Rng& rng, std::int64_t rows, bool softmax_rows) {
    std::normal_distribution<double> normal;
    std::vector<double> s(static_cast<std::size_t>(rows * rows));
    for (std::int64_t i = 0; i < rows; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j <= i; ++j) sum += s[i * rows + j] = normal(rng);
      for (std::int64_t j = 0; j <= i && softmax_rows; ++j)
        s[i * rows + j] -= sum / static_cast<double>(i + 1);
    }
    return s;
  }

  void add_products(const HeadPrior& head, const std::vector<double>& s) {
    const std::int64_t rows = positions.rows(), lanes = 2 * head.modes();
    std::vector<double> query(static_cast<std::size_t>(rows * lanes)), key(query.size()),
        slope(static_cast<std::size_t>(rows));
    std::vector<std::vector<double>> a, c;
    for (std::int64_t t = 0; t < rows; ++t)
      a.push_back(query_vector(head, positions, t)), c.push_back(key_vector(head, positions, t));
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j <= i; ++j) {
        for (std::int64_t x = 0; x < lanes; ++x) {
          query[i * lanes + x] += s[i * rows + j] * c[j][x];
          key[j * lanes + x] += s[i * rows + j] * a[i][x];
        }
        slope[j] += s[i * rows + j] * static_cast<double>(j - i);
      }
    query_lanes.insert(query_lanes.end(), query.begin(), query.end());
    key_lanes.insert(key_lanes.end(), key.begin(), key.end());
    key_slope.insert(key_slope.end(), slope.begin(), slope.end());
  }

  double loss(std::size_t h) const {
    const std::vector<double> k = prior_matrix(heads[h], positions);
    double sum = 0;
    for (std::size_t ij = 0; ij < k.size(); ++ij) sum += batch_sum[h][ij] * k[ij];
    return sum;
  }

  struct Result {
    std::vector<double> alpha, beta, slope, frequency;  // [H, R], [H, R], [H], [R]
  };
  Result numerical() {
    Result result;
    result.frequency.assign(heads[0].frequency.size(), 0);
    for (std::size_t h = 0; h < heads.size(); ++h) {
      const auto of_head = [&] { return loss(h); };
      for (const double g : numerical_gradient(heads[h].alpha, 0.5, of_head))
        result.alpha.push_back(g);  // linear: any step will do
      for (const double g : numerical_gradient(heads[h].beta, 0.5, of_head)) result.beta.push_back(g);
      std::vector<double> slope{0};
      result.slope.push_back(
          numerical_gradient(slope, 0.5, [&] { return heads[h].slope = slope[0], loss(h); })[0]);
      heads[h].slope = 0;
      result.frequency = plus(result.frequency, numerical_gradient(heads[h].frequency, 1e-6, of_head));
    }
    return result;
  }

  // Sums of the absolute values of the terms that the operation's formulas add up, positions counted from
  // their mean.
  Result terms() const {
    const std::size_t modes = heads[0].alpha.size();
    const auto rows = static_cast<std::size_t>(positions.rows());
    Result sums{std::vector<double>(heads.size() * modes), std::vector<double>(heads.size() * modes),
                std::vector<double>(heads.size()), std::vector<double>(modes)};
    for (std::size_t i = 0; i < query_lanes.size() / 2; ++i) {  // i counts [B, H, T, R]
      const std::size_t r = i % modes, t = i / modes % rows, h = i / modes / rows % heads.size();
      const auto [cosine, sine] = fourier_pair(heads[h].frequency[r], coordinate(t, r));
      const double x = query_lanes[2 * i], y = query_lanes[2 * i + 1],
                   distance = std::abs(coordinate(t, r) - mean_coordinate(r));
      sums.alpha[h * modes + r] += std::abs(x * cosine) + std::abs(y * sine);
      sums.beta[h * modes + r] += std::abs(x * sine) + std::abs(y * cosine);
      sums.frequency[r] += distance * std::hypot(heads[h].alpha[r], heads[h].beta[r]) * std::hypot(x, y);
      sums.frequency[r] += distance * std::hypot(key_lanes[2 * i], key_lanes[2 * i + 1]);
    }
    for (std::size_t i = 0; i < key_slope.size(); ++i)
      sums.slope[i / rows % heads.size()] += std::abs(key_slope[i]);
    return sums;
  }

 private:
  double coordinate(std::size_t t, std::size_t r) const {
    return positions.coordinate(static_cast<std::int64_t>(t), static_cast<std::int64_t>(r), heads[0].modes());
  }
  double mean_coordinate(std::size_t r) const {
    double sum = 0, count = 0;
    for (std::int64_t t = 0; t < positions.rows(); ++t)
      if (coordinate(static_cast<std::size_t>(t), r) >= 0)
        sum += coordinate(static_cast<std::size_t>(t), r), count += 1;
    return sum / count;
  }
};

// Operands of PriorLanesBackward with random numbers already in its (accumulated) outputs.
struct LanesBackwardFixture {
  GradientShape shape;
  std::vector<double> frequency;
  Operand alpha, beta;
  LaneGradients gradients;
  Operand dalpha, dbeta, dlambda, dfrequency, dq_lanes, dk_lanes, dslope, fourier, positions;

  LanesBackwardFixture(Device& device, Rng& rng, const GradientShape& s)
      : shape(s),
        frequency(fourier_frequencies(s.modes, 10000)),
        alpha(Operand::normal(device, rng, {s.heads, s.modes}, "alpha")),
        beta(Operand::normal(device, rng, {s.heads, s.modes}, "beta")),
        gradients(rng, heads_of(alpha, beta, frequency), s),
        dalpha(Operand::normal(device, rng, {s.heads, s.modes}, "dalpha")),
        dbeta(Operand::normal(device, rng, {s.heads, s.modes}, "dbeta")),
        dlambda(Operand::normal(device, rng, {s.heads}, "dlambda")),
        dfrequency(Operand::normal(device, rng, {s.modes}, "dfrequency")),
        dq_lanes(
            Operand::of(device, gradients.query_lanes, {s.batch, s.heads, rows(), 2 * s.modes}, "dq_lanes")),
        dk_lanes(
            Operand::of(device, gradients.key_lanes, {s.batch, s.heads, rows(), 2 * s.modes}, "dk_lanes")),
        dslope(Operand::of(device, gradients.key_slope, {s.batch, s.heads, rows()}, "dslope")),
        fourier(Operand::of(device, fourier_table(frequency, s.positions), {rows(), s.modes, 2}, "fourier")),
        positions(positions_operand(device, s.positions)) {}

  std::int64_t rows() const { return shape.positions.rows(); }
  PriorLanesBackward operation() const {
    return {dalpha, dbeta, dlambda, dfrequency, dq_lanes, dk_lanes, dslope, alpha, beta, fourier, positions};
  }
};
}  // namespace

TEST_CASE("prior lanes backward: gradients match the derivative of sum dS K and are added to what was there",
          "[prior]") {
  const std::vector<GradientShape> shapes = {{1, 1, 1, Positions::sequence(0, 1)},
                                             {3, 1, 2, Positions::sequence(0, 2)},
                                             {3, 3, 2, Positions::sequence(0, 65)},
                                             {1, 3, 8, Positions::sequence(0, 129)},
                                             {1, 1, 1, Positions::sequence(900, 129)},
                                             {2, 3, 2, Positions::sequence(32768 - 33, 33)},
                                             {1, 3, 3, Positions::grid_with_class_token(65, 8)},
                                             {17, 2, 1, Positions::sequence(0, 9)},
                                             {3, 3, 2, Positions::sequence(0, 65), true}};
  for (const std::string& name : device_names())
    for (const GradientShape& shape : shapes) {
      const auto device = open_tested(name);
      const std::uint64_t seed = fresh_seed();
      Rng rng(seed);
      INFO(name << ", seed " << seed << ", B H R T A = " << shape.batch << " " << shape.heads << " "
                << shape.modes << " " << shape.positions.rows() << " " << shape.positions.axes
                << ", first position " << shape.positions.values[0]
                << (shape.softmax_rows ? ", rows of dS add up to 0" : ""));
      LanesBackwardFixture fixture(*device, rng, shape);
      const LaneGradients::Result want = fixture.gradients.numerical(), terms = fixture.gradients.terms();
      const std::vector<double> alpha = fixture.dalpha.values(), beta = fixture.dbeta.values(),
                                slope = fixture.dlambda.values(), frequency = fixture.dfrequency.values();
      device->run(fixture.operation());
      CHECK_FP32(fixture.dalpha.values(), plus(want.alpha, alpha), plus(terms.alpha, absolute(alpha)));
      CHECK_FP32(fixture.dbeta.values(), plus(want.beta, beta), plus(terms.beta, absolute(beta)));
      CHECK_FP32(fixture.dlambda.values(), plus(want.slope, slope), plus(terms.slope, absolute(slope)));
      CHECK_FP32(fixture.dfrequency.values(), plus(want.frequency, frequency),
                 plus(terms.frequency, absolute(frequency)));
    }
}

TEST_CASE("prior lanes backward: many modes, rows and sequences match the formulas in float64", "[prior]") {
  struct Shape {
    std::int64_t batch, heads, modes, rows;
  };
  for (const std::string& name : device_names())
    for (const auto& [batch, heads, modes, rows] :
         {Shape{2, 1, 300, 5}, Shape{1, 2, 130, 600}, Shape{37, 11, 2, 200}, Shape{2, 3, 0, 40}}) {
      const auto device = open_tested(name);
      const std::uint64_t seed = fresh_seed();
      Rng rng(seed);
      INFO(name << ", seed " << seed << ", B H R T = " << batch << " " << heads << " " << modes << " "
                << rows);
      const std::vector<double> frequency = fourier_frequencies(modes, 10000);
      const Positions positions = Positions::sequence(0, rows);
      const Operand alpha = Operand::normal(*device, rng, {heads, modes}, "alpha"),
                    beta = Operand::normal(*device, rng, {heads, modes}, "beta");
      const Operand fourier =
          Operand::of(*device, fourier_table(frequency, positions), {rows, modes, 2}, "fourier");
      const Operand dq = Operand::normal(*device, rng, {batch, heads, rows, 2 * modes}, "dq_lanes");
      const Operand dk = Operand::normal(*device, rng, {batch, heads, rows, 2 * modes}, "dk_lanes");
      const Operand dslope = Operand::normal(*device, rng, {batch, heads, rows}, "dslope");
      const Operand dalpha = Operand::zeros(*device, {heads, modes}, "dalpha"),
                    dbeta = Operand::zeros(*device, {heads, modes}, "dbeta");
      const Operand dlambda = Operand::zeros(*device, {heads}, "dlambda"),
                    dfrequency = Operand::zeros(*device, {modes}, "dfrequency");
      device->run(PriorLanesBackward{dalpha, dbeta, dlambda, dfrequency, dq, dk, dslope, alpha, beta, fourier,
                                     positions_operand(*device, positions)});

      const std::vector<double> a = alpha.values(), b = beta.values(), e = fourier.values(),
                                query = dq.values(), key = dk.values(), slope = dslope.values();
      std::vector<double> want_alpha(a.size()), want_beta(a.size()), want_frequency(frequency.size()),
          want_lambda(static_cast<std::size_t>(heads));
      for (std::size_t i = 0; i < query.size() / 2; ++i) {  // i counts [B, H, T, R]
        const std::size_t r = i % frequency.size(),
                          row = i / frequency.size() % static_cast<std::size_t>(rows);
        const std::size_t hr = i / frequency.size() / static_cast<std::size_t>(rows) %
                                   static_cast<std::size_t>(heads) * frequency.size() +
                               r;
        const double cosine = e[2 * (row * frequency.size() + r)],
                     sine = e[2 * (row * frequency.size() + r) + 1];
        const double along = query[2 * i] * cosine + query[2 * i + 1] * sine,
                     across = query[2 * i] * sine - query[2 * i + 1] * cosine;
        want_alpha[hr] += along;
        want_beta[hr] += across;
        want_frequency[r] += (static_cast<double>(row) - 0.5 * static_cast<double>(rows - 1)) *
                             (b[hr] * along - a[hr] * across + key[2 * i + 1] * cosine - key[2 * i] * sine);
      }
      for (std::size_t i = 0; i < slope.size(); ++i)
        want_lambda[i / static_cast<std::size_t>(rows) % static_cast<std::size_t>(heads)] += slope[i];
      CHECK_FP32(dalpha.values(), want_alpha);
      CHECK_FP32(dbeta.values(), want_beta);
      CHECK_FP32(dlambda.values(), want_lambda);
      CHECK_FP32(dfrequency.values(), want_frequency);
    }
}

TEST_CASE("prior lanes backward: the same bits in any order of threads, and without the optional gradients",
          "[prior]") {
  for (const std::string& name : device_names()) {
    const auto device = open_tested(name);
    const std::uint64_t seed = fresh_seed();
    Rng rng(seed);
    INFO(name << ", seed " << seed);
    LanesBackwardFixture fixture(*device, rng, {3, 3, 2, Positions::sequence(0, 150)});
    const std::vector<double> alpha = fixture.dalpha.values(), beta = fixture.dbeta.values(),
                              slope = fixture.dlambda.values(), frequency = fixture.dfrequency.values();
    const auto start_again = [&] {
      fixture.dalpha.set(alpha);
      fixture.dbeta.set(beta);
      fixture.dlambda.set(slope);
      fixture.dfrequency.set(frequency);
    };
    check_schedules(name, [&] {
      start_again();
      device->run(fixture.operation());
      std::vector<double> results;
      for (const Operand* gradient : {&fixture.dalpha, &fixture.dbeta, &fixture.dlambda, &fixture.dfrequency})
        for (const double value : gradient->values()) results.push_back(value);
      return results;
    });
    const std::vector<double> all_alpha = fixture.dalpha.values(), all_beta = fixture.dbeta.values();

    start_again();
    PriorLanesBackward op = fixture.operation();
    op.dlambda = op.dslope = op.dfrequency = op.dk_lanes = {};
    device->run(op);
    CHECK(fixture.dalpha.values() == all_alpha);
    CHECK(fixture.dbeta.values() == all_beta);
    CHECK(fixture.dlambda.values() == slope);
    CHECK(fixture.dfrequency.values() == frequency);
  }
}

TEST_CASE("prior lanes backward: sums are taken in double, so that what is left of large terms survives",
          "[prior]") {
  for (const std::string& name : device_names())
    for (const auto& [batch, rows] : {std::pair<std::int64_t, std::int64_t>{1, 3}, {3, 1}}) {
      const auto device = open_tested(name);
      INFO(name << ", B T = " << batch << " " << rows);
      const double large = 0x1p24;  // large + 1 - large is 0 in fp32
      const Operand dalpha = Operand::zeros(*device, {1, 1}, "dalpha"),
                    dbeta = Operand::zeros(*device, {1, 1}, "dbeta");
      const Operand dlambda = Operand::zeros(*device, {1}, "dlambda"),
                    dslope = Operand::of(*device, {large, 1, -large}, {batch, 1, rows}, "dslope");
      const Operand dq_lanes =
          Operand::of(*device, {large, -large, 1, -2, -large, large}, {batch, 1, rows, 2}, "dq_lanes");
      const Operand alpha = Operand::of(*device, {1}, {1, 1}, "alpha"),
                    beta = Operand::of(*device, {1}, {1, 1}, "beta");
      std::vector<double> ahead;  // cos = 1, sin = 0
      for (std::int64_t t = 0; t < rows; ++t) ahead.insert(ahead.end(), {1, 0});
      const Operand fourier = Operand::of(*device, ahead, {rows, 1, 2}, "fourier");
      const Operand positions = positions_operand(*device, Positions::sequence(0, rows));
      device->run(PriorLanesBackward{
          dalpha, dbeta, dlambda, {}, dq_lanes, {}, dslope, alpha, beta, fourier, positions});
      CHECK(dalpha.values()[0] == 1);
      CHECK(dbeta.values()[0] == 2);
      CHECK(dlambda.values()[0] == 1);
    }
}

TEST_CASE("prior lanes backward: the lanes of a shared head of k count once", "[prior]") {
  for (const std::string& name : device_names())
    for (const auto& [heads, key_heads] : {std::pair<std::int64_t, std::int64_t>{6, 2}, {4, 1}, {3, 3}}) {
      const auto device = open_tested(name);
      const std::uint64_t seed = fresh_seed();
      Rng rng(seed);
      INFO(name << ", seed " << seed << ", " << heads << " and " << key_heads << " heads");
      const std::int64_t batch = 2, rows = 70, modes = 2, group = heads / key_heads;
      const Positions positions = Positions::sequence(0, rows);
      const Operand alpha = Operand::normal(*device, rng, {heads, modes}, "alpha"),
                    beta = Operand::normal(*device, rng, {heads, modes}, "beta"),
                    fourier = Operand::normal(*device, rng, {rows, modes, 2}, "fourier"),
                    dq = Operand::normal(*device, rng, {batch, heads, rows, 2 * modes}, "dq_lanes"),
                    dk = Operand::normal(*device, rng, {batch, key_heads, rows, 2 * modes}, "dk_lanes");
      // The same sum with a head of k for each head of q: all of it on the last of a group.
      const std::vector<double> shared = dk.values();
      const auto of_head = static_cast<std::size_t>(rows * 2 * modes);
      std::vector<double> own(shared.size() * static_cast<std::size_t>(group));
      for (std::size_t i = 0; i < shared.size(); ++i)
        own[(i / of_head * static_cast<std::size_t>(group) + static_cast<std::size_t>(group) - 1) * of_head +
            i % of_head] = shared[i];
      const Operand dk_own = Operand::of(*device, own, {batch, heads, rows, 2 * modes}, "dk_lanes");
      std::vector<std::vector<double>> results;
      for (const Operand* lanes : {&dk, &dk_own}) {
        const Operand dalpha = Operand::zeros(*device, {heads, modes}, "dalpha"),
                      dbeta = Operand::zeros(*device, {heads, modes}, "dbeta"),
                      dfrequency = Operand::zeros(*device, {modes}, "dfrequency");
        device->run(PriorLanesBackward{dalpha,
                                       dbeta,
                                       {},
                                       dfrequency,
                                       dq,
                                       *lanes,
                                       {},
                                       alpha,
                                       beta,
                                       fourier,
                                       positions_operand(*device, positions)});
        results.push_back(dalpha.values());
        results.push_back(dbeta.values());
        results.push_back(dfrequency.values());
      }
      CHECK(results[0] == results[3]);
      CHECK(results[1] == results[4]);
      CHECK_FP32(results[2], results[5]);
    }
}
