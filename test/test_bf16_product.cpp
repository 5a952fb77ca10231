// The two forms of the CPU's bf16 products against each other and against float64.
#include "kernels/cpu/bf16_product.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "test/catch.h"
#include "test/operand.h"
#include "test/values.h"

using namespace goat;
using namespace goat::test;

namespace {
using Index = std::int64_t;

std::vector<float> normal(Rng& rng, Index count) {
  std::normal_distribution<float> draw;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = draw(rng);
  return values;
}

struct Problem {
  ProductShape shape;
  std::vector<float> left, right, start;

  Problem(const ProductShape& product, Rng& rng)
      : shape(product),
        left(normal(rng, shape.m * shape.k)),
        right(normal(rng, shape.k * shape.n)),
        start(normal(rng, shape.m * shape.n)) {}

  // left or right at (row, column), rounded.
  static double at(const std::vector<float>& values, Index row, Index column, Index rows, Index columns,
                   bool transposed) {
    return rounded_to(
        DType::bf16,
        values[static_cast<std::size_t>(transposed ? column * rows + row : row * columns + column)]);
  }
};

struct Sums {
  std::vector<double> value, terms;
};

Sums oracle(const Problem& p, bool accumulate) {
  Sums sums;
  const auto& [m, n, k, left_transposed, right_transposed] = p.shape;
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) {
      double sum = accumulate ? p.start[static_cast<std::size_t>(i * n + j)] : 0, terms = std::abs(sum);
      for (Index c = 0; c < k; ++c) {
        const double term = Problem::at(p.left, i, c, m, k, left_transposed) *
                            Problem::at(p.right, c, j, k, n, right_transposed);
        sum += term;
        terms += std::abs(term);
      }
      sums.value.push_back(sum);
      sums.terms.push_back(terms);
    }
  return sums;
}

std::vector<double> product(Bf16Form form, const Problem& p, bool accumulate) {
  std::vector<std::byte> workspace(bf16_workspace(form, p.shape), std::byte{0xff});  // NaN
  std::vector<float> out = p.start;
  if (!accumulate) out.assign(out.size(), std::numeric_limits<float>::quiet_NaN());
  multiply_bf16(form, p.shape, out.data(), p.left.data(), p.right.data(), accumulate, workspace.data());
  return {out.begin(), out.end()};
}

// The library's form too where the processor has its instructions, taken or not.
std::vector<Bf16Form> forms() {
  const unsigned has = dnnl_get_effective_cpu_isa(), needed = dnnl_cpu_isa_avx512_core_bf16;
  if ((has & needed) == needed) return {Bf16Form::rounded, Bf16Form::library};
  return {Bf16Form::rounded};
}
}  // namespace

TEST_CASE("bf16 product: each form of each transposition equals float64 of the rounded factors") {
  const auto seed = fresh_seed();
  INFO("GOAT_TEST_SEED=" << seed);
  Rng rng(seed);
  for (const auto& [m, n, k] : {std::tuple<Index, Index, Index>{1, 1, 1},
                                {1, 70, 33},
                                {37, 5, 3},
                                {64, 96, 32},
                                {65, 33, 129},
                                {3, 200, 500}})
    for (const bool left_transposed : {false, true})
      for (const bool right_transposed : {false, true}) {
        const Problem problem({m, n, k, left_transposed, right_transposed}, rng);
        for (const bool accumulate : {false, true}) {
          const Sums want = oracle(problem, accumulate);
          for (const Bf16Form form : forms()) {
            INFO(m << " x " << k << " by " << k << " x " << n << (left_transposed ? ", left^T" : "")
                   << (right_transposed ? ", right^T" : "") << (accumulate ? ", added" : "")
                   << (form == Bf16Form::library ? ", library" : ", rounded"));
            CHECK_FP32(product(form, problem, accumulate), want.value, want.terms);
          }
        }
      }
}

TEST_CASE("bf16 product: without terms it is zero, or what was there") {
  Rng rng(fresh_seed());
  const Problem problem({3, 5, 0, false, true}, rng);
  for (const Bf16Form form : forms()) {
    CHECK(product(form, problem, false) == std::vector<double>(15, 0.0));
    CHECK(product(form, problem, true) == std::vector<double>(problem.start.begin(), problem.start.end()));
  }
}

TEST_CASE("bf16 product: another number of threads is another plan, and as good") {
  Rng rng(fresh_seed());
  const Problem problem({40, 50, 60, false, true}, rng);
  const Sums want = oracle(problem, false);
  const int threads = omp_get_max_threads();
  for (const int other : {1, 3, 2}) {
    omp_set_num_threads(other);
    for (const Bf16Form form : forms())
      for (int again = 0; again < 2; ++again)
        CHECK_FP32(product(form, problem, false), want.value, want.terms);
  }
  omp_set_num_threads(threads);
}
