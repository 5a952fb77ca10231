// Signature: checks the operands of an operation against their documented shapes and dtypes, for example out
// [N, C], mean f32 [N], weight f32 [C]:
//
//   Signature s("layernorm_forward");
//   s.contiguous("x", op.x, Element::activation, {"N", "C"});  // the first operand with an N or C defines it
//   s.contiguous("weight", op.weight, Element::f32, {"C"});    // later operands must have the same C
//
//   s.contiguous(written("out"), op.out, Element::activation, {"N", "C"});  // the operation writes it
//
// A mismatch throws std::invalid_argument, for example
// "layernorm_forward: weight [3] f32: expected shape [C] = [4] (C = 4 in x)".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/tensor.h"

namespace goat {

enum class Element {
  activation,  // f32 or bf16, the same for all activations and weights
  weight,      // the same dtype as the activations
  real,        // f32 or bf16, each operand separately
  f32_or_f64,  // each operand separately
  f32,
  f64,
  i32
};

// The name of an operand, and whether the operation writes it. What it adds to or changes in place is
// written.
struct Field {
  const char* name;
  bool written = false;
  Field(const char* operand) : name(operand) {}
};
inline Field written(const char* operand) {
  Field field = operand;
  field.written = true;
  return field;
}

class Signature {
 public:
  // The symbols of a shape's extents: "C", "2R". A number such as "2" is a fixed extent.
  using Symbols = std::initializer_list<const char*>;

  explicit Signature(const char* operation) : operation_(operation) {}

  // A required operand. contiguous: row-major without gaps. strided: only the last dimension
  // must be contiguous.
  void contiguous(Field field, const Tensor& tensor, Element element, Symbols extents);
  void strided(Field field, const Tensor& tensor, Element element, Symbols extents);
  // A required contiguous operand of any shape. All operands checked with this function must have
  // the same shape.
  void elementwise(Field field, const Tensor& tensor, Element element);

  // A required operand that is not a tensor.
  template <class T>
  void given(Field field, const T* operand) const {
    given(field, operand, sizeof(T));
  }
  // Two optional operands that must be both present or both absent.
  void together(const char* field, const Tensor& tensor, const char* other_field, const Tensor& other) const;

  // Defines an extent that is computed from another one. Messages name `field` as its origin.
  void define(const char* symbol, std::int64_t extent, const char* field);
  // The value of an extent, or 0 if no operand has it.
  std::int64_t operator[](const char* symbol) const;

  // A rule about the extents: "attention_forward: expected T_q <= T_k (T_q = 5 in q, T_k = 3 in k)".
  void require(bool holds, const char* rule, Symbols symbols = {}) const;
  // A rule about a scalar operand:
  // "cross_entropy: vocab = 70: expected 1 <= vocab <= V_p (V_p = 64 in logits)".
  void scalar(const char* field, std::int64_t value, bool holds, const char* rule,
              Symbols symbols = {}) const;
  void scalar(const char* field, float value, bool holds, const char* rule, Symbols symbols = {}) const;

 private:
  struct Binding {
    const char* symbol = "";
    std::int64_t extent = 0;
    const char* field = "";
  };
  static constexpr int max_bindings = 12;

  void given(Field field, const void* operand, std::size_t bytes) const;
  void note(Field field, const void* memory, std::size_t bytes) const;
  void note(Field field, const Tensor& tensor) const;
  const Binding* find(const char* symbol) const;
  void present(const char* field, const Tensor& tensor) const;
  void check_element(const char* field, const Tensor& tensor, Element element);
  void check_shape(const char* field, const Tensor& tensor, Symbols extents);
  std::string expected_shape(Symbols extents) const;
  std::string where(Symbols symbols) const;
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void fail(const char* field, const Tensor& tensor, const std::string& what) const;

  const char* operation_;
  std::array<Binding, max_bindings> bindings_{};
  int binding_count_ = 0;
  DType model_dtype_{};  // of the activations and weights
  const char* model_dtype_field_ = nullptr;
  Tensor elementwise_{};
  const char* elementwise_field_ = nullptr;
};

}  // namespace goat
