// Tensor: a view {pointer, dtype, shape, strides, name} of memory that another object owns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace goat {

enum class DType : std::uint8_t { f32, bf16, f64, i32 };

std::size_t size_of(DType dtype);
const char* name_of(DType dtype);

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};

// Copies of a tensor view the same memory. A tensor without data is "absent" (optional operands) or
// "planned" (see train/memory/memory.h).
struct Tensor {
  static constexpr int max_rank = 5;

  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<std::int64_t, max_rank> shape{};
  std::array<std::int64_t, max_rank> stride{};  // in elements
  const char* name = "";  // for messages; must outlive the view (a literal, or a plan's string)

  // A contiguous (row-major) view.
  static Tensor contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                           const char* name = "");
  template <class T>
  static Tensor of(T* data, std::initializer_list<std::int64_t> shape, const char* name = "") {
    return contiguous(data, DTypeOf<T>::value, shape, name);
  }

  explicit operator bool() const { return data != nullptr; }
  std::int64_t elements() const;
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype); }
  bool is_contiguous() const;

  // The elements as T. Throws std::invalid_argument, naming the tensor, if T is not its dtype.
  template <class T>
  T* as() const {
    if (dtype != DTypeOf<T>::value) wrong_dtype(DTypeOf<T>::value);
    return static_cast<T*>(data);
  }

  // Views of the same memory. slice keeps `count` indices of `dim`, starting at `first`. select fixes one
  // index and drops the dimension. reshape needs a contiguous tensor and the same number of elements. All
  // throw std::invalid_argument if an index or the shape does not fit.
  Tensor slice(int dim, std::int64_t first, std::int64_t count) const;
  Tensor select(int dim, std::int64_t index) const;
  Tensor reshape(std::initializer_list<std::int64_t> new_shape) const;

  std::string shape_text() const;  // "[2, 3, 4]"

 private:
  [[noreturn]] void wrong_dtype(DType wanted) const;
};

}  // namespace goat
