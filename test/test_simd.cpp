// kernels/cpu/simd.h against float64, over the whole range of float32, for each instruction set this machine
// has.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/cpu/simd.h"
#include "test/catch.h"
#include "test/operand.h"

namespace {
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float exp_underflow = -87.33654f;

struct Exp {
  static SIMD_INLINE float of(float x) { return goat::simd::exp(x); }
};
struct Tanh {
  static SIMD_INLINE float of(float x) { return goat::simd::tanh(x); }
};

template <class Function>
SIMD_INLINE void map(float* out, const float* x, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = Function::of(x[i]);
}

template <class Function>
void map_baseline(float* out, const float* x, std::size_t count) {
  map<Function>(out, x, count);
}

struct Variant {
  const char* name;
  std::function<void(float*, const float*, std::size_t)> apply;
};

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
template <class Function>
__attribute__((target("arch=x86-64-v3"))) void map_v3(float* out, const float* x, std::size_t count) {
  map<Function>(out, x, count);
}
template <class Function>
__attribute__((target("arch=x86-64-v4"))) void map_v4(float* out, const float* x, std::size_t count) {
  map<Function>(out, x, count);
}
template <class Function>
std::vector<Variant> variants() {
  std::vector<Variant> all{{"baseline", map_baseline<Function>}};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    all.push_back({"AVX2", map_v3<Function>});
  if (__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    all.push_back({"AVX-512", map_v4<Function>});
  return all;
}
#else
template <class Function>
std::vector<Variant> variants() {
  return {{"baseline", map_baseline<Function>}};
}
#endif

// Every 4099th bit pattern of a float, from a random one on: about a million values of every magnitude and
// sign, infinities and NaNs among them.
std::vector<float> floats_of_every_magnitude() {
  constexpr std::uint32_t stride = 4099;
  std::vector<float> values;
  for (std::uint64_t bits = goat::test::fresh_seed() % stride; bits < (1ull << 32); bits += stride) {
    const auto pattern = static_cast<std::uint32_t>(bits);
    float value;
    std::memcpy(&value, &pattern, sizeof value);
    values.push_back(value);
  }
  return values;
}

// The distance of got from want, in units of the last place of want as a float.
double ulps(float got, double want) {
  int exponent;
  std::frexp(want, &exponent);
  return std::abs(got - want) / std::ldexp(1.0, exponent - 24);
}

template <class Function>
std::vector<float> apply(const Variant& variant, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  variant.apply(y.data(), x.data(), x.size());
  return y;
}
}  // namespace

TEST_CASE("simd exp: within 1.1 ulp wherever the result is a normal float, 0 below and infinity above") {
  const std::vector<float> x = floats_of_every_magnitude();
  for (const Variant& variant : variants<Exp>()) {
    INFO(variant.name);
    const std::vector<float> y = apply<Exp>(variant, x);
    double worst = 0;
    float worst_x = 0;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp(static_cast<double>(x[i]));
      if (std::isnan(x[i])) {
        wrong += !std::isnan(y[i]);
      } else if (x[i] < exp_underflow) {
        wrong += y[i] != 0 || std::signbit(y[i]);
      } else if (want > std::numeric_limits<float>::max()) {
        wrong += y[i] != infinity;
      } else if (const double distance = ulps(y[i], want); !(distance <= worst)) {
        worst = distance;
        worst_x = x[i];
      }
    }
    INFO("worst " << worst << " ulp at " << worst_x);
    CHECK(worst <= 1.1);
    CHECK(wrong == 0);
  }
}

TEST_CASE("simd exp: exact at 0, right at the edges of its range and at the special values") {
  const std::vector<float> x = {0.0f,          -0.0f,   88.722f, 88.7229f, 89.5f,     1e30f,       infinity,
                                exp_underflow, -87.34f, -104.0f, -1e30f,   -infinity, not_a_number};
  for (const Variant& variant : variants<Exp>()) {
    INFO(variant.name);
    const std::vector<float> y = apply<Exp>(variant, x);
    CHECK(y[0] == 1.0f);
    CHECK(y[1] == 1.0f);
    CHECK(ulps(y[2], std::exp(static_cast<double>(x[2]))) <= 1.1);
    for (const std::size_t i : {3, 4, 5, 6}) CHECK(y[i] == infinity);
    CHECK(y[7] == Approx(std::numeric_limits<float>::min()));
    for (const std::size_t i : {8, 9, 10, 11}) CHECK(y[i] == 0.0f);
    CHECK(std::isnan(y[12]));
  }
}

TEST_CASE("simd tanh: within 1e-7 everywhere, odd, and NaN only for NaN") {
  const std::vector<float> x = floats_of_every_magnitude();
  for (const Variant& variant : variants<Tanh>()) {
    INFO(variant.name);
    std::vector<float> negated(x.size());
    std::transform(x.begin(), x.end(), negated.begin(), std::negate<>());
    const std::vector<float> y = apply<Tanh>(variant, x), opposite = apply<Tanh>(variant, negated);
    double worst = 0;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i])) {
        wrong += !std::isnan(y[i]);
      } else {
        worst = std::max(worst, std::abs(y[i] - std::tanh(static_cast<double>(x[i]))));
        wrong += std::isnan(y[i]) || std::abs(y[i]) > 1.0f || opposite[i] != -y[i];
      }
    }
    INFO("worst error " << worst);
    CHECK(worst <= 1e-7);
    CHECK(wrong == 0);
  }
}

TEST_CASE("simd tanh: 1 and -1 at the infinities") {
  for (const Variant& variant : variants<Tanh>()) {
    INFO(variant.name);
    const std::vector<float> y = apply<Tanh>(variant, {infinity, -infinity, 0.0f, 100.0f});
    CHECK(y == std::vector<float>{1.0f, -1.0f, 0.0f, 1.0f});
  }
}
