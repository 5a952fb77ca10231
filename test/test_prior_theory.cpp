// What the paper says about the prior alone, on the lanes that the operations wrote.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/prior_setup.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/prior_oracle.h"
#include "test/tested_device.h"

using namespace goat;
using namespace goat::test;

namespace {
constexpr std::int64_t length = 32768, head_dim = 64;

// u~(j) [H, T] of a random sink with M = 8: up to some tens, as trained ones are.
Operand sink_key_bias(Device& device, Rng& rng, std::int64_t heads, const Operand& positions) {
  constexpr std::int64_t modes = 8, width = 2 * modes + 2, units = 24;
  const Operand features(device, DType::f32, {length, width}, "features"),
      hidden(device, DType::f32, {length, units}, "hidden");
  Operand key_bias(device, DType::f32, {heads, length}, "key_bias");
  device.run(SinkFeatures{
      features, Operand::of(device, fourier_frequencies(modes, 10000), {modes}, "frequency", DType::f64),
      positions, 2048});
  device.run(SinkForward{key_bias, hidden, features, Operand::normal(device, rng, {units, width}, "w1", 0.5),
                         Operand::normal(device, rng, {units}, "b1"),
                         Operand::normal(device, rng, {heads, units}, "w2", 0.5),
                         Operand::normal(device, rng, {heads}, "bump", 3)});
  return key_bias;
}

// A random prior of `heads` heads on a device, with its tables for all positions up to 32767 (key_only: alpha
// = beta = 0), and the oracle's copy of it.
struct DevicePrior {
  Device& device;
  std::int64_t modes, content;
  float scale;
  std::vector<double> frequency;
  Operand positions, alpha, beta, key_bias, fourier;
  std::vector<HeadPrior> heads;

  DevicePrior(Device& d, Rng& rng, std::int64_t head_count, std::int64_t r, bool key_only = false)
      : device(d),
        modes(r),
        content(head_dim - 2 * r - 2),
        scale(1 / std::sqrt(static_cast<float>(content))),
        frequency(fourier_frequencies(r, 10000)),
        positions(
            Operand::of(d, Positions::sequence(0, length).values, {length, 1}, "positions", DType::i32)),
        alpha(key_only ? Operand::zeros(d, {head_count, r}, "alpha")
                       : Operand::normal(d, rng, {head_count, r}, "alpha")),
        beta(key_only ? Operand::zeros(d, {head_count, r}, "beta")
                      : Operand::normal(d, rng, {head_count, r}, "beta")),
        key_bias(sink_key_bias(d, rng, head_count, positions)),
        fourier(d, DType::f32, {length, r, 2}, "fourier") {
    device.run(FourierTable{fourier, Operand::of(d, frequency, {r}, "frequency", DType::f64), positions});
    const std::vector<double> a = alpha.values(), b = beta.values(), u = key_bias.values();
    for (std::int64_t h = 0; h < head_count; ++h)
      heads.push_back({{a.begin() + h * r, a.begin() + (h + 1) * r},
                       {b.begin() + h * r, b.begin() + (h + 1) * r},
                       frequency,
                       0,
                       {u.begin() + h * length, u.begin() + (h + 1) * length}});
  }
  std::int64_t head_count() const { return static_cast<std::int64_t>(heads.size()); }
};

// The lanes [rows, H, d_p] of q and k at positions first .. first + rows.
struct Lanes {
  std::int64_t first, rows, heads, lane_dim;
  double scale;
  std::vector<double> q, k;

  Lanes(const DevicePrior& prior, std::int64_t first_position, std::int64_t count, DType dtype = DType::f32)
      : first(first_position),
        rows(count),
        heads(prior.head_count()),
        lane_dim(head_dim - prior.content),
        scale(prior.scale) {
    const Operand query(prior.device, dtype, {1, rows, heads, head_dim}, "q"),
        key(prior.device, dtype, {1, rows, heads, head_dim}, "k");
    prior.device.run(PriorLanesForward{query, key, prior.alpha, prior.beta, prior.key_bias, prior.fourier,
                                       prior.content, first, prior.scale});
    q = values_of(prior.device, query.tensor().slice(3, prior.content, lane_dim));
    k = values_of(prior.device, key.tensor().slice(3, prior.content, lane_dim));
  }
};

// sigma <q', k'> over lanes from .. from + count; i and j are rows of their windows.
double logit(const Lanes& queries, const Lanes& keys, std::int64_t h, std::int64_t i, std::int64_t j,
             std::int64_t from, std::int64_t count) {
  double sum = 0;
  for (std::int64_t lane = from; lane < from + count; ++lane)
    sum += queries.q[(i * queries.heads + h) * queries.lane_dim + lane] *
           keys.k[(j * keys.heads + h) * keys.lane_dim + lane];
  return queries.scale * sum;
}
}  // namespace

TEST_CASE(
    "prior theory: <a_i, c_j> = alpha cos w(i-j) + beta sin w(i-j), mode by mode, to fp32 accuracy at any "
    "distance",
    "[prior]") {
  for (const std::string& name : device_names())
    for (const std::int64_t modes : {1, 2, 8}) {
      const auto device = open_tested(name);
      const std::uint64_t seed = fresh_seed();
      Rng rng(seed);
      INFO(name << ", seed " << seed << ", R = " << modes);
      const DevicePrior prior(*device, rng, 3, modes);
      const Lanes queries(prior, length - 65, 65);
      double worst = 0;  // in units of the mode's amplitude
      for (const Lanes& keys : {Lanes(prior, 0, 65), Lanes(prior, 12345, 65), queries})
        for (std::int64_t h = 0; h < 3; ++h)
          for (std::int64_t i = 0; i < queries.rows; ++i)
            for (std::int64_t j = 0; j < keys.rows; ++j)
              for (std::int64_t r = 0; r < modes; ++r) {
                const double alpha = prior.heads[h].alpha[r], beta = prior.heads[h].beta[r];
                const double angle =
                    prior.frequency[r] * static_cast<double>(queries.first + i - keys.first - j);
                const double error = logit(queries, keys, h, i, j, 2 * r, 2) -
                                     (alpha * std::cos(angle) + beta * std::sin(angle));
                worst = std::max(worst, std::abs(error) / std::hypot(alpha, beta));
              }
      CHECK(worst <= 16 * 0x1p-24);
    }
}

TEST_CASE("prior theory: K_rel(i+a, j+a) = K_rel(i, j) up to position 32767", "[prior]") {
  for (const std::string& name : device_names())
    for (const std::int64_t modes : {1, 2, 4, 8}) {
      const auto device = open_tested(name);
      const std::uint64_t seed = fresh_seed();
      Rng rng(seed);
      INFO(name << ", seed " << seed << ", R = " << modes);
      const DevicePrior prior(*device, rng, 1, modes);
      const Lanes origin(prior, 0, 129);
      for (const std::int64_t shift :
           {std::int64_t{1}, std::int64_t{1000}, std::int64_t{16384}, length - 129}) {
        const Lanes shifted(prior, shift, 129);
        double worst = 0;
        for (std::int64_t i = 0; i < 129; ++i)
          for (std::int64_t j = 0; j < 129; ++j)
            worst = std::max(worst, std::abs(logit(shifted, shifted, 0, i, j, 0, 2 * modes) -
                                             logit(origin, origin, 0, i, j, 0, 2 * modes)));
        INFO("shift " << shift << ", worst " << worst);
        CHECK(worst <= 32 * 0x1p-24 * prior.heads[0].amplitude());
      }
    }
}

TEST_CASE("prior theory: a key-only prior has rank one, one with relative modes has not", "[prior]") {
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    const std::uint64_t seed = fresh_seed();
    Rng rng(seed);
    INFO(name << ", " << name_of(dtype) << ", seed " << seed);
    for (const bool key_only : {true, false}) {
      const DevicePrior prior(*device, rng, 1, 2, key_only);
      const Lanes lanes(prior, 0, 65, dtype);
      double rows_differ = 0, minors = 0;  // of K, and the 2 x 2 minors of exp K relative to their terms
      for (std::int64_t i = 1; i < 65; ++i)
        for (std::int64_t j = 1; j < 65; ++j) {
          const auto k = [&](std::int64_t row, std::int64_t column) {
            return logit(lanes, lanes, 0, row, column, 0, lanes.lane_dim);
          };
          rows_differ = std::max(rows_differ, std::abs(k(i, j) - k(0, j)));
          minors = std::max(minors, std::abs(std::exp(k(i, j) + k(0, 0) - k(i, 0) - k(0, j)) - 1));
        }
      if (key_only) {
        CHECK(rows_differ == 0);
        CHECK(minors <= 1e-13);
      } else {
        CHECK(minors > 1e-2);
      }
    }
  }
}

// The rest of the prior, lambda (j - i) with slopes as large as ALiBi's, does not pass through the lanes: see
// the attention tests.
TEST_CASE(
    "prior theory: the lanes' share of a logit is K_rel + u within 0.003 + 0.008 sum of amplitudes at "
    "position 32767",
    "[prior]") {
  for (const auto& [name, dtype] : variants())
    for (const std::int64_t modes : {1, 2, 4, 8}) {
      const auto device = open_tested(name);
      const std::uint64_t seed = fresh_seed();
      Rng rng(seed);
      INFO(name << ", " << name_of(dtype) << ", seed " << seed << ", R = " << modes);
      const DevicePrior prior(*device, rng, 12, modes);
      const Positions positions = Positions::sequence(0, length);
      const Lanes queries(prior, length - 33, 33, dtype);
      double worst = 0,
             worst_fp32 = 0;  // errors in units of the required bound, and of the magnitude of the terms
      for (const Lanes& keys : {Lanes(prior, 0, 33, dtype), Lanes(prior, 20000, 33, dtype), queries})
        for (std::int64_t h = 0; h < prior.head_count(); ++h)
          for (std::int64_t i = 0; i < queries.rows; ++i)
            for (std::int64_t j = 0; j < keys.rows; ++j) {
              const double bias = prior.heads[h].key_bias[keys.first + j],
                           amplitude = prior.heads[h].amplitude();
              const double want =
                  relative_prior(prior.heads[h], positions, queries.first + i, keys.first + j) + bias;
              const double error = std::abs(logit(queries, keys, h, i, j, 0, keys.lane_dim) - want);
              worst = std::max(worst, error / (0.003 + 0.008 * amplitude));
              worst_fp32 = std::max(worst_fp32, error / (amplitude + std::abs(bias)));
            }
      CHECK(worst <= 1);
      if (dtype == DType::f32) CHECK(worst_fp32 <= 16 * 0x1p-24);
    }
}
