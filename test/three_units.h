// A small model to share among ranks.
#pragma once

#include "train/memory/parameters.h"

namespace goat::test {

// Three units: a matrix of which only some rows are stored, a whole matrix with a bias, and a vector. Large
// enough that each of 4 ranks has pieces of it.
inline void declare_three_units(ParameterSet& parameters) {
  const Parameter& packed = parameters.declare_packed("packed", {3, 100, 300}, ParameterRole::matrix);
  parameters.store(packed, "rows", {3 * 60, 300}, packed.value.slice(1, 0, 60), 0, {.std = 1});
  parameters.begin_unit();
  parameters.declare("second", {333, 211}, ParameterRole::matrix, {.std = 1});
  parameters.declare("bias", {77}, ParameterRole::bias, {.constant = 3});
  parameters.begin_unit();
  parameters.declare("norm", {5}, ParameterRole::vector, {.std = 2});
}

}  // namespace goat::test
