// What the checks of operations say. They never read the memory of an operand: all have the same.
#pragma once

#include <initializer_list>
#include <stdexcept>
#include <string>

#include "kernels/operations.h"

namespace goat::test {

inline double memory[1];

inline Tensor f32(std::initializer_list<std::int64_t> shape, const char* name = "") {
  return Tensor::contiguous(memory, DType::f32, shape, name);
}
inline Tensor bf16(std::initializer_list<std::int64_t> shape) {
  return Tensor::contiguous(memory, DType::bf16, shape);
}
inline Tensor f64(std::initializer_list<std::int64_t> shape) {
  return Tensor::contiguous(memory, DType::f64, shape);
}
inline Tensor i32(std::initializer_list<std::int64_t> shape) {
  return Tensor::contiguous(memory, DType::i32, shape);
}

// What the check says of op, "" if nothing.
template <class Operation>
std::string complaint(const Operation& op) {
  try {
    check(op);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

// What the check says of op after a change to it.
template <class Operation, class Change>
std::string complaint(Operation op, Change change) {
  change(op);
  return complaint(op);
}

}  // namespace goat::test
