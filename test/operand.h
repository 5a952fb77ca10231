// What the operation tests share: devices under test, operands with guard bands and poisoned contents, and
// the tolerance rule.
#pragma once

#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace goat::test {

// Every device this binary can open on this machine ("cpu", "simt", "cuda") that computes in `dtype` (the cpu
// device: f32 only). Tests run once for each. GOAT_TEST_DEVICES="simt,cuda" leaves the others out.
std::vector<std::string> device_names(DType dtype = DType::f32);

// Every pair of a device and a model dtype (f32, bf16) it computes in.
struct Variant {
  std::string device;
  DType dtype;
};
std::vector<Variant> variants();

// A seed that differs on every run unless GOAT_TEST_SEED is set; printed when a check fails (INFO in the
// test) so that a failure can be repeated.
std::uint64_t fresh_seed();
using Rng = std::mt19937_64;

// Whether GOAT_TEST_REDUCED is set: sanitizers and the race checker make the kernels several times slower, so
// tests leave out large shapes that reach no code the small ones do not.
bool reduced();

// A tensor in device memory between two guard bands. A new operand is poisoned: every byte 0xFF (NaN for
// floats, -1 for integers).
class Operand {
 public:
  Operand(Device& device, DType dtype, std::initializer_list<std::int64_t> shape, const char* name);

  // Filled with N(0, scale^2), rounded to the dtype.
  static Operand normal(Device& device, Rng& rng, std::initializer_list<std::int64_t> shape, const char* name,
                        double scale = 1, DType dtype = DType::f32);
  static Operand of(Device& device, const std::vector<double>& values,
                    std::initializer_list<std::int64_t> shape, const char* name, DType dtype = DType::f32);
  static Operand zeros(Device& device, std::initializer_list<std::int64_t> shape, const char* name,
                       DType dtype = DType::f32);

  const Tensor& tensor() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }

  // The elements as double, row-major. Throws std::runtime_error if something wrote outside the tensor.
  std::vector<double> values() const;
  void set(const std::vector<double>& values);  // rounds to the dtype

 private:
  Device* device_;
  DeviceBuffer buffer_;
  Tensor tensor_;
};

// The values of any (strided) view of f32, f64, i32 or bf16 on a device, row-major.
std::vector<double> values_of(Device& device, const Tensor& view);

// ||got - want|| <= 1e-5 ||want|| + 8 * 2^-24 ||terms|| in the 2-norm, every element finite, sizes equal.
// terms[i] is the sum of the absolute values of the terms that were added up to give want[i]; empty: |want|.
// Returns "" if it holds, else a message with both sides and the worst element.
std::string mismatch_fp32(const std::vector<double>& got, const std::vector<double>& want,
                          const std::vector<double>& terms = {});

// ||got - want|| <= 2 ||plain - want|| + 8 * 2^-24 ||terms||, where plain is what a plain bf16 implementation
// with fp32 accumulation gives; empty: want rounded once to bf16, and then no element may be off by more than
// that rounding and 2^-17 of its terms and of the elements' root mean square. Otherwise as mismatch_fp32.
std::string mismatch_bf16(const std::vector<double>& got, const std::vector<double>& want,
                          const std::vector<double>& terms = {}, const std::vector<double>& plain = {});

// Rounded to dtype, to nearest even.
double rounded_to(DType dtype, double value);
std::vector<double> rounded_to(DType dtype, std::vector<double> values);

}  // namespace goat::test

// CHECK that an fp32 result matches its float64 oracle.
#define CHECK_FP32(got, want, ...)                                                                       \
  do {                                                                                                   \
    const std::string goat_mismatch = ::goat::test::mismatch_fp32(got, want __VA_OPT__(, ) __VA_ARGS__); \
    INFO(#got << ": " << goat_mismatch);                                                                 \
    CHECK(goat_mismatch.empty());                                                                        \
  } while (false)

// CHECK that a bf16 result, or an fp32 one of bf16 products, matches its float64 oracle, which was computed
// from the rounded inputs.
#define CHECK_BF16(got, want, ...)                                                                       \
  do {                                                                                                   \
    const std::string goat_mismatch = ::goat::test::mismatch_bf16(got, want __VA_OPT__(, ) __VA_ARGS__); \
    INFO(#got << ": " << goat_mismatch);                                                                 \
    CHECK(goat_mismatch.empty());                                                                        \
  } while (false)

// CHECK that a result of a model dtype (f32 or bf16) matches its float64 oracle, which was computed from the
// rounded inputs.
#define CHECK_MATCHES(dtype, got, want, ...)                                                                \
  do {                                                                                                      \
    const std::string goat_mismatch =                                                                       \
        (dtype) == ::goat::DType::bf16 ? ::goat::test::mismatch_bf16(got, want __VA_OPT__(, ) __VA_ARGS__)  \
                                       : ::goat::test::mismatch_fp32(got, want __VA_OPT__(, ) __VA_ARGS__); \
    INFO(#got << ": " << goat_mismatch);                                                                    \
    CHECK(goat_mismatch.empty());                                                                           \
  } while (false)
