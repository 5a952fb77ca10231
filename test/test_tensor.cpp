// Tensor: views of the same memory, and what they say when they are misused.
#include "kernels/tensor.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "test/catch.h"

using goat::DType;
using goat::Tensor;

namespace {
// The elements of a view of integers, row-major.
std::vector<std::int32_t> elements_of(const Tensor& view) {
  std::vector<std::int32_t> values;
  const auto* data = view.as<std::int32_t>();
  std::array<std::int64_t, Tensor::max_rank> index{};
  for (std::int64_t n = 0; n < view.elements(); ++n) {
    std::int64_t offset = 0;
    for (int dim = 0; dim < view.rank; ++dim) offset += index[dim] * view.stride[dim];
    values.push_back(data[offset]);
    for (int dim = view.rank - 1; dim >= 0 && ++index[dim] == view.shape[dim]; --dim) index[dim] = 0;
  }
  return values;
}

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

struct Counting {
  std::vector<std::int32_t> memory = std::vector<std::int32_t>(24);
  Tensor tensor = Tensor::of(memory.data(), {2, 3, 4}, "x");
  Counting() {
    for (std::int32_t i = 0; i < 24; ++i) memory[static_cast<std::size_t>(i)] = i;
  }
};
}  // namespace

TEST_CASE("tensor: a contiguous view knows its shape, strides and size") {
  const Counting x;
  CHECK(x.tensor.rank == 3);
  CHECK(x.tensor.elements() == 24);
  CHECK(x.tensor.bytes() == 96);
  CHECK(x.tensor.stride[0] == 12);
  CHECK(x.tensor.stride[1] == 4);
  CHECK(x.tensor.stride[2] == 1);
  CHECK(x.tensor.is_contiguous());
  CHECK(x.tensor.shape_text() == "[2, 3, 4]");
  CHECK(x.tensor);
  CHECK_FALSE(Tensor{});
}

TEST_CASE("tensor: a scalar has rank 0 and one element, an empty tensor none and is contiguous") {
  float value = 0;
  const Tensor scalar = Tensor::of(&value, {}, "s"), empty = Tensor::of(&value, {3, 0, 2}, "e");
  CHECK(scalar.elements() == 1);
  CHECK(scalar.shape_text() == "[]");
  CHECK(scalar.is_contiguous());
  CHECK(empty.elements() == 0);
  CHECK(empty.is_contiguous());
  CHECK(Counting().tensor.slice(2, 1, 0).is_contiguous());
}

TEST_CASE("tensor: sizes and names of the dtypes") {
  CHECK(size_of(DType::f32) == 4);
  CHECK(size_of(DType::bf16) == 2);
  CHECK(size_of(DType::f64) == 8);
  CHECK(size_of(DType::i32) == 4);
  CHECK(std::string(name_of(DType::bf16)) == "bf16");
}

TEST_CASE("tensor: slice keeps a range of one dimension") {
  const Counting x;
  const Tensor middle = x.tensor.slice(1, 1, 2);
  CHECK(middle.shape_text() == "[2, 2, 4]");
  CHECK_FALSE(middle.is_contiguous());
  CHECK(elements_of(middle) ==
        std::vector<std::int32_t>{4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23});
  CHECK(x.tensor.slice(0, 1, 1).is_contiguous());
  CHECK(elements_of(x.tensor.slice(2, 3, 1).slice(0, 1, 1)) == std::vector<std::int32_t>{15, 19, 23});
  CHECK(x.tensor.slice(1, 3, 0).elements() == 0);
}

TEST_CASE("tensor: select drops a dimension") {
  const Counting x;
  const Tensor column = x.tensor.select(2, 1);
  CHECK(column.shape_text() == "[2, 3]");
  CHECK(elements_of(column) == std::vector<std::int32_t>{1, 5, 9, 13, 17, 21});
  CHECK(elements_of(x.tensor.select(0, 1).select(0, 2)) == std::vector<std::int32_t>{20, 21, 22, 23});
  CHECK(x.tensor.select(0, 1).is_contiguous());
  CHECK(elements_of(x.tensor.select(0, 1).select(0, 2).select(0, 3)) == std::vector<std::int32_t>{23});
}

TEST_CASE("tensor: reshape keeps the order of the elements") {
  const Counting x;
  const Tensor flat = x.tensor.reshape({24});
  CHECK(elements_of(flat) == x.memory);
  CHECK(elements_of(flat.reshape({4, 6}).select(0, 1)) == std::vector<std::int32_t>{6, 7, 8, 9, 10, 11});
  CHECK(x.tensor.slice(0, 1, 1).reshape({12}).elements() == 12);
}

TEST_CASE("tensor: a dimension of extent 1 never breaks contiguity") {
  const Counting x;
  CHECK(x.tensor.slice(1, 2, 1).slice(0, 0, 1).is_contiguous());
  CHECK_FALSE(x.tensor.slice(1, 2, 1).is_contiguous());
}

TEST_CASE("tensor: views of a planned tensor have no memory either") {
  const Tensor planned = Tensor::contiguous(nullptr, DType::f32, {4, 4}, "p");
  CHECK_FALSE(planned.slice(0, 2, 2));
  CHECK_FALSE(planned.select(0, 3).reshape({2, 2}));
}

TEST_CASE("tensor: misuse names the tensor, what was asked and what there is") {
  Counting x;
  const Tensor nameless = Tensor::of(x.memory.data(), {24});
  CHECK(message_of([&] { x.tensor.as<float>(); }) == "tensor 'x' [2, 3, 4] is i32 where f32 is needed");
  CHECK(message_of([&] { x.tensor.slice(1, 2, 2); }) ==
        "tensor 'x' [2, 3, 4] has no 2 indices from 2 on in dimension 1");
  CHECK(message_of([&] { x.tensor.slice(1, -1, 2); }) ==
        "tensor 'x' [2, 3, 4] has no 2 indices from -1 on in dimension 1");
  CHECK(message_of([&] { x.tensor.slice(3, 0, 1); }) == "tensor 'x' [2, 3, 4] has no dimension 3");
  CHECK(message_of([&] { x.tensor.slice(-1, 0, 1); }) == "tensor 'x' [2, 3, 4] has no dimension -1");
  CHECK(message_of([&] { x.tensor.slice(0, 0, -1); }) ==
        "tensor 'x' [2, 3, 4]: a slice cannot have -1 indices");
  CHECK(message_of([&] { x.tensor.select(2, 4); }) == "tensor 'x' [2, 3, 4] has no index 4 in dimension 2");
  CHECK(message_of([&] {
          x.tensor.reshape({5, 5});
        }) == "tensor 'x' [2, 3, 4] cannot be reshaped to [5, 5]: 24 elements are not 25");
  CHECK(message_of([&] { x.tensor.select(2, 0).reshape({6}); }) ==
        "tensor 'x' [2, 3] cannot be reshaped to [6]: it is not contiguous");
  CHECK(message_of([&] { nameless.slice(0, 0, 25); }) ==
        "tensor [24] has no 25 indices from 0 on in dimension 0");
  CHECK(message_of([&] {
          Tensor::of(x.memory.data(), {2, -3}, "y");
        }) == "tensor 'y': an extent cannot be -3");
  CHECK(message_of([&] {
          Tensor::of(x.memory.data(), {1, 1, 1, 1, 1, 1}, "y");
        }) == "tensor 'y' has 6 dimensions, where at most 5 are possible");
}

TEST_CASE("tensor: a slice near the largest integer does not wrap around") {
  const Counting x;
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  CHECK_THROWS_AS(x.tensor.slice(0, largest, 1), std::invalid_argument);
  CHECK_THROWS_AS(x.tensor.slice(0, 1, largest), std::invalid_argument);
}
