#include "kernels/tensor.h"

#include <stdexcept>

namespace goat {

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return 4;
    case DType::bf16: return 2;
    case DType::f64: return 8;
    case DType::i32: return 4;
  }
  throw std::invalid_argument("size_of: unknown dtype");
}

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f64: return "f64";
    case DType::i32: return "i32";
  }
  return "unknown dtype";
}

namespace {
[[noreturn]] void fail(const Tensor& t, const std::string& shape, const std::string& what) {
  const std::string name = *t.name ? std::string(" '") + t.name + "'" : "";
  throw std::invalid_argument("tensor" + name + (shape.empty() ? "" : " " + shape) + what);
}

void set_contiguous(Tensor& t, std::initializer_list<std::int64_t> shape) {
  if (shape.size() > Tensor::max_rank)
    fail(t, "", " has " + std::to_string(shape.size()) + " dimensions, where at most 5 are possible");
  t.rank = static_cast<int>(shape.size());
  t.shape = {};
  t.stride = {};
  int dim = 0;
  for (std::int64_t extent : shape) {
    if (extent < 0) fail(t, "", ": an extent cannot be " + std::to_string(extent));
    t.shape[dim++] = extent;
  }
  std::int64_t step = 1;
  for (dim = t.rank - 1; dim >= 0; --dim) {
    t.stride[dim] = step;
    step *= t.shape[dim];
  }
}

// Throws unless the indices first .. first + count - 1 of the dimension exist.
void require_range(const Tensor& t, int dim, std::int64_t first, std::int64_t count) {
  if (dim < 0 || dim >= t.rank) fail(t, t.shape_text(), " has no dimension " + std::to_string(dim));
  if (count < 0) fail(t, t.shape_text(), ": a slice cannot have " + std::to_string(count) + " indices");
  if (first >= 0 && first <= t.shape[dim] && count <= t.shape[dim] - first) return;
  const std::string indices = count == 1
                                  ? "index " + std::to_string(first)
                                  : std::to_string(count) + " indices from " + std::to_string(first) + " on";
  fail(t, t.shape_text(), " has no " + indices + " in dimension " + std::to_string(dim));
}
}  // namespace

Tensor Tensor::contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                          const char* name) {
  Tensor t;
  t.data = data;
  t.dtype = dtype;
  t.name = name;
  set_contiguous(t, shape);
  return t;
}

std::int64_t Tensor::elements() const {
  std::int64_t n = 1;
  for (int dim = 0; dim < rank; ++dim) n *= shape[dim];
  return n;
}

bool Tensor::is_contiguous() const {
  if (elements() == 0) return true;
  std::int64_t step = 1;
  for (int dim = rank - 1; dim >= 0; --dim) {
    if (shape[dim] != 1 && stride[dim] != step) return false;
    step *= shape[dim];
  }
  return true;
}

Tensor Tensor::slice(int dim, std::int64_t first, std::int64_t count) const {
  require_range(*this, dim, first, count);
  Tensor t = *this;
  t.shape[dim] = count;
  if (data)
    t.data = static_cast<char*>(data) + static_cast<std::size_t>(first * stride[dim]) * size_of(dtype);
  return t;
}

Tensor Tensor::select(int dim, std::int64_t index) const {
  Tensor t = slice(dim, index, 1);
  for (int d = dim; d + 1 < rank; ++d) {
    t.shape[d] = t.shape[d + 1];
    t.stride[d] = t.stride[d + 1];
  }
  --t.rank;
  t.shape[t.rank] = t.stride[t.rank] = 0;
  return t;
}

Tensor Tensor::reshape(std::initializer_list<std::int64_t> new_shape) const {
  Tensor t = *this;
  set_contiguous(t, new_shape);
  const bool contiguous_here = is_contiguous();
  if (contiguous_here && t.elements() == elements()) return t;
  fail(*this, shape_text(),
       " cannot be reshaped to " + t.shape_text() + ": " +
           (contiguous_here ? std::to_string(elements()) + " elements are not " + std::to_string(t.elements())
                            : "it is not contiguous"));
}

std::string Tensor::shape_text() const {
  std::string text = "[";
  for (int dim = 0; dim < rank; ++dim) text += (dim ? ", " : "") + std::to_string(shape[dim]);
  return text + "]";
}

void Tensor::wrong_dtype(DType wanted) const {
  fail(*this, shape_text(),
       std::string(" is ") + name_of(dtype) + " where " + name_of(wanted) + " is needed");
}

}  // namespace goat
