// A linear layer with a GELU behind it, and its gradient through a GELU before it, against float64 oracles:
// as one operation, by kernels of our own and by the matrix library.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "test/catch.h"
#include "test/each_variant.h"
#include "test/gelu_oracle.h"
#include "test/linear_oracle.h"
#include "test/operand.h"
#include "test/schedules.h"

using namespace goat;
using namespace goat::test;

namespace {
using namespace goat::test::gelu_oracle;
using linear_oracle::Oracle;
using linear_oracle::Shape;

constexpr Epilogue epilogues[] = {Epilogue::own, Epilogue::library};
const char* name_of(Epilogue epilogue) { return epilogue == Epilogue::own ? "own" : "library"; }

// Odd sizes, sizes that the library's epilogues take (multiples of 8), and one of a model's.
std::vector<Shape> shapes() {
  std::vector<Shape> all{{64, 96, 384}};
  for (const std::int64_t tokens : {1, 17, 66})
    for (const std::int64_t in : {1, 24, 65, 136})
      for (const std::int64_t out : {1, 8, 65, 136}) all.push_back({tokens, in, out});
  return all;
}

// The operands of both operations: up's [out, in] layer with the GELU behind it, and the gradient through the
// layer that follows, whose weight is [in, out]. So that `projected` and its gradient are [tokens, out].
struct Layer {
  Operand x, weight, bias, dout, down;
  Layer(Device& device, Rng& rng, const Shape& s, DType dtype)
      : x(Operand::normal(device, rng, {s.tokens, s.in}, "x", 1, dtype)),
        weight(Operand::normal(device, rng, {s.out, s.in}, "weight", 0.3, dtype)),
        bias(Operand::normal(device, rng, {s.out}, "bias", 1, dtype)),
        dout(Operand::normal(device, rng, {s.tokens, s.in}, "dout", 1, dtype)),
        down(Operand::normal(device, rng, {s.in, s.out}, "down", 1, dtype)) {}

  Oracle projected(const Shape& s) const {
    return linear_oracle::forward(s, x.values(), weight.values(), bias.values());
  }
  // Gradient of gelu(projected).
  Oracle dhidden(const Shape& s) const {
    return linear_oracle::backward_input({s.tokens, s.out, s.in}, dout.values(), down.values());
  }
};

struct Results {
  Operand out, projected, dprojected;
  Results(Device& device, const Shape& s, DType dtype)
      : out(device, dtype, {s.tokens, s.out}, "out"),
        projected(device, dtype, {s.tokens, s.out}, "projected"),
        dprojected(device, dtype, {s.tokens, s.out}, "dprojected") {}
  Values all() const { return concatenated({out.values(), projected.values(), dprojected.values()}); }
};

void run(Device& device, const Layer& layer, const Results& results, Epilogue epilogue,
         Factors factors = Factors::as_stored) {
  device.run(LinearGeluForward{results.out, results.projected, layer.x, layer.weight, layer.bias, factors,
                               epilogue});
  device.run(LinearGeluBackwardInput{results.dprojected, layer.dout, layer.down, results.projected, factors,
                                     epilogue});
}

// The same by an operation for each step.
void run_apart(Device& device, const Layer& layer, const Results& results,
               Factors factors = Factors::as_stored) {
  device.run(LinearForward{results.projected, layer.x, layer.weight, layer.bias, factors});
  device.run(GeluForward{results.out, results.projected});
  device.run(LinearBackwardInput{results.dprojected, layer.dout, layer.down, factors});
  device.run(GeluBackward{results.dprojected, results.dprojected, results.projected});
}

// Whether a bf16 result is rounded once. The library's form is, where it exists; cuBLASLt's own formula of
// GELU may cost as much again.
bool rounds_once(const Device& device, const Shape& s, Epilogue epilogue) {
  return epilogue == Epilogue::library && s.out % 8 == 0 && device.info().name != "cuda";
}

void check_close(DType dtype, const Values& got, const Values& want, const Values& terms,
                 const Values& plain) {
  if (dtype == DType::bf16)
    CHECK_BF16(got, want, terms, plain);
  else
    CHECK_FP32(got, want, terms);
}

// out = gelu(s) of the float64 sums s, dprojected at the projected values that were stored. Results in bf16
// are rounded once, or else held to a plain bf16 computation, which rounds each step.
void check(const Layer& layer, const Results& results, const Shape& s, bool once) {
  const DType dtype = results.out.tensor().dtype;
  const Oracle sums = layer.projected(s), dhidden = layer.dhidden(s);
  const Values at = results.projected.values();
  CHECK_MATCHES(dtype, at, sums.value, sums.terms);

  Values terms = product(map(std::abs, map(gelu_derivative, sums.value)), sums.terms);
  const Values own_terms = map(gelu_terms, sums.value);
  for (std::size_t i = 0; i < terms.size(); ++i) terms[i] += own_terms[i];
  const Values dterms = product(map(gelu_derivative_terms, at), dhidden.terms);
  Values plain, dplain;
  if (!once) {
    plain = rounded_to(dtype, map(gelu, rounded_to(dtype, sums.value)));
    dplain = rounded_to(dtype, product(rounded_to(dtype, dhidden.value), map(gelu_derivative, at)));
  }
  check_close(dtype, results.out.values(), map(gelu, sums.value), terms, plain);
  check_close(dtype, results.dprojected.values(), product(dhidden.value, map(gelu_derivative, at)), dterms,
              dplain);
}
}  // namespace

TEST_CASE(
    "linear with gelu: forward and backward match float64 at odd shapes, by kernels and by the library") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const Shape& s : shapes())
      for (const Epilogue epilogue : epilogues) {
        INFO(name_of(epilogue) << ", N " << s.tokens << ", I " << s.in << ", O " << s.out);
        const Layer layer(device, rng, s, dtype);
        const Results results(device, s, dtype);
        run(device, layer, results, epilogue);
        check(layer, results, s, rounds_once(device, s, epilogue));
      }
  });
}

TEST_CASE("linear with gelu: by kernels, bitwise what the operations give one by one") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const Shape& s : {Shape{33, 40, 72}, Shape{5, 7, 3}})
      for (const Factors factors : {Factors::as_stored, Factors::tf32, Factors::bf16}) {
        const Layer layer(device, rng, s, dtype);
        const Results together(device, s, dtype), apart(device, s, dtype);
        run(device, layer, together, Epilogue::own, factors);
        run_apart(device, layer, apart, factors);
        CHECK(together.all() == apart.all());
      }
  });
}

TEST_CASE("linear with gelu: without bias") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    const Shape s{17, 24, 40};
    for (const Epilogue epilogue : epilogues) {
      INFO(name_of(epilogue));
      Layer layer(device, rng, s, dtype);
      layer.bias.set(Values(40, 0));
      const Results with(device, s, dtype), without(device, s, dtype);
      run(device, layer, with, epilogue);
      device.run(LinearGeluForward{
          without.out, without.projected, layer.x, layer.weight, {}, Factors::as_stored, epilogue});
      CHECK_MATCHES(dtype, without.projected.values(), layer.projected(s).value, layer.projected(s).terms);
      CHECK_MATCHES(dtype, without.out.values(), with.out.values());
    }
  });
}

// Rounding to bf16 changes a number by at most 2^-8 of its size: the projection, where GELU has a slope of at
// most 1.13, and both results.
TEST_CASE("linear with gelu: library and kernels differ by one rounding of the projection at most") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    const Shape s{65, 64, 136};
    const Layer layer(device, rng, s, dtype);
    const Results own(device, s, dtype), library(device, s, dtype);
    run(device, layer, own, Epilogue::own);
    run(device, layer, library, Epilogue::library);
    const Values sums = layer.projected(s).value, a = own.out.values(), b = library.out.values();
    const double unit = dtype == DType::bf16 ? 0x1p-8 : 1e-6, least = 1e-5;
    double worst = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
      worst =
          std::max(worst, std::abs(a[i] - b[i]) /
                              (unit * (1.13 * std::abs(sums[i]) + std::abs(a[i]) + std::abs(b[i])) + least));
    CHECK(worst <= 1);
  });
}

// 1 + 2^-8 and 1 + 3 2^-8 lie halfway between two bf16 numbers.
TEST_CASE(
    "linear with gelu: the library's epilogue takes sums that are not rounded, the kernels rounded ones") {
  for_each_variant([](Device& device, DType dtype, Rng&) {
    if (device.info().name != "simt" || dtype != DType::bf16) return;
    const auto row = [&](double first, const char* name) {
      return Operand::of(device, {first, 0x1p-8}, {1, 2}, name, dtype);
    };
    const auto ones = Operand::of(device, Values(16, 1), {8, 2}, "weight", dtype),
               down = Operand::of(device, Values(16, 1), {2, 8}, "down", dtype),
               bias = Operand::zeros(device, {8}, "bias", dtype),
               at_one = Operand::of(device, Values(8, 1), {1, 8}, "projected", dtype);
    for (const Epilogue epilogue : epilogues) {
      INFO(name_of(epilogue));
      const bool own = epilogue == Epilogue::own;
      const Operand out(device, dtype, {1, 8}, "out"), projected(device, dtype, {1, 8}, "projected"),
          dprojected(device, dtype, {1, 8}, "dprojected");
      device.run(LinearGeluForward{out, projected, row(1, "x"), ones, bias, Factors::as_stored, epilogue});
      CHECK(projected.values() == Values(8, 1));
      CHECK(out.values() == Values(8, rounded_to(dtype, gelu(own ? 1 : 1 + 0x1p-8))));
      const double sum = 1 + 3 * 0x1p-8;
      device.run(LinearGeluBackwardInput{dprojected, row(1 + 0x1p-7, "dout"), down, at_one,
                                         Factors::as_stored, epilogue});
      CHECK(dprojected.values() ==
            Values(8, rounded_to(dtype, gelu_derivative(1) * (own ? rounded_to(dtype, sum) : sum))));
    }
    CHECK(rounded_to(dtype, gelu(1)) != rounded_to(dtype, gelu(1 + 0x1p-8)));
    CHECK(rounded_to(dtype, gelu_derivative(1) * rounded_to(dtype, 1 + 3 * 0x1p-8)) !=
          rounded_to(dtype, gelu_derivative(1) * (1 + 3 * 0x1p-8)));
  });
}

TEST_CASE("linear with gelu: for rows that the library has no epilogue for, the kernels compute") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    if (device.info().name == "cuda") return;  // which sizes cuBLASLt takes is its own affair
    const Shape s{17, 24, 68};                 // not a multiple of 8
    const Layer layer(device, rng, s, dtype);
    const Results own(device, s, dtype), library(device, s, dtype);
    run(device, layer, own, Epilogue::own);
    run(device, layer, library, Epilogue::library);
    CHECK(own.all() == library.all());
  });
}

// Then the library has no epilogue, and its products take other algorithms.
TEST_CASE("linear with gelu: operands that do not start on 16 bytes match float64") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    const Shape s{24, 32, 40};
    const Layer layer(device, rng, s, dtype);
    const auto shifted = [](const Operand& memory, std::int64_t rows) {
      return memory.tensor().slice(0, 1, rows * 40).reshape({rows, 40});
    };
    const std::int64_t size = s.tokens * s.out + 1;
    for (const Epilogue epilogue : epilogues)
      for (const std::string moved : {"out", "projected", "bias", "all"}) {
        INFO(name_of(epilogue) << ", " << moved << " not aligned");
        const auto is_moved = [&](const char* name) { return moved == name || moved == "all"; };
        const Results results(device, s, dtype);
        const Operand out(device, dtype, {size}, "out"), projected(device, dtype, {size}, "projected"),
            dprojected(device, dtype, {size}, "dprojected");
        Operand bias_memory(device, dtype, {s.out + 1}, "bias");
        Values bias = layer.bias.values();
        bias.insert(bias.begin(), 0);
        bias_memory.set(bias);
        LinearGeluForward forward{results.out, results.projected, layer.x, layer.weight, layer.bias};
        LinearGeluBackwardInput backward{results.dprojected, layer.dout, layer.down, {}};
        forward.epilogue = backward.epilogue = epilogue;
        if (is_moved("out")) forward.out = shifted(out, s.tokens);
        if (is_moved("out")) backward.dprojected = shifted(dprojected, s.tokens);
        if (is_moved("projected")) forward.projected = shifted(projected, s.tokens);
        if (is_moved("bias")) forward.bias = bias_memory.tensor().slice(0, 1, s.out);
        backward.projected = forward.projected;
        device.run(forward);
        device.run(backward);
        const Results copied(device, s, dtype);
        for (const auto& [to, from] : {std::pair{&copied.out, forward.out},
                                       {&copied.projected, forward.projected},
                                       {&copied.dprojected, backward.dprojected}})
          device.copy(to->tensor().data, from.data, from.bytes());
        check(layer, copied, s, false);
        for (const Operand* memory : {&out, &projected, &dprojected})
          CHECK(std::isnan(memory->values()[0]));  // throws if the guards were touched
      }
  });
}

TEST_CASE("linear with gelu: no tokens are no work, and nothing is added") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const Epilogue epilogue : epilogues) {
      const Shape s{0, 3, 8};
      const Layer layer(device, rng, s, dtype);
      const Results results(device, s, dtype);
      run(device, layer, results, epilogue);
      CHECK(results.all().empty());
    }
  });
}

TEST_CASE("linear with gelu: the factors are rounded to bf16, and to TF32 where the device has it") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    const Shape s{16, 200, 64};
    const Layer layer(device, rng, s, dtype);
    const Results full(device, s, dtype), rounded(device, s, dtype), apart(device, s, dtype);
    if (dtype == DType::f32 && device.info().name == "cuda") return;  // cuBLASLt may decline
    for (const Epilogue epilogue : epilogues)
      for (const Factors factors : {Factors::tf32, Factors::bf16}) {
        INFO(name_of(epilogue) << (factors == Factors::bf16 ? ", bf16" : ", TF32"));
        run(device, layer, full, epilogue);
        run(device, layer, rounded, epilogue, factors);
        run_apart(device, layer, apart, factors);
        const bool rounds = dtype == DType::f32 && (factors == Factors::bf16 || device.info().name == "simt");
        CHECK((rounded.all() != full.all()) == rounds);
        if (rounds) CHECK(rounded.all() == apart.all());  // in f32 both epilogues round alike
      }
  });
}

TEST_CASE("linear with gelu: the same bits in every order of the work") {
  for (const auto& [name, dtype] : variants()) {
    if (name == "cpu") continue;  // oneDNN's sums depend on the number of threads
    const auto device = open_tested(name);
    const auto seed = fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    const Shape s{130, 40, 136};
    const Layer layer(*device, rng, s, dtype);
    for (const Epilogue epilogue : epilogues)
      check_schedules(name, [&, type = dtype] {
        const Results results(*device, s, type);
        run(*device, layer, results, epilogue);
        return results.all();
      });
  }
}
