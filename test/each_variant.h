// A test's body on every device, and in every dtype that the device has.
#pragma once

#include "test/catch.h"
#include "test/operand.h"
#include "test/tested_device.h"

namespace goat::test {

// Calls body(device, dtype, rng) with a fresh seed each time, which a failure shows.
template <class Body>
void for_each_variant(Body body) {
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    const auto seed = fresh_seed();
    INFO(name << ", " << name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    body(*device, dtype, rng);
  }
}

// Calls body(device, rng) once for each device that has `dtype`, with a fresh seed, which a failure shows.
template <class Body>
void for_each_device(DType dtype, Body body) {
  for (const std::string& name : device_names(dtype)) {
    const auto device = open_tested(name);
    const auto seed = fresh_seed();
    INFO(name << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    body(*device, rng);
  }
}

}  // namespace goat::test
