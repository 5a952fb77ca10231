// PassHooks: what is done beside a training pass, unit by unit.
#pragma once

#include <cstddef>

namespace goat {

// Units are those of ParameterSet::begin_unit. A forward pass goes from unit 0 to the last, a backward pass
// back again. Both calls come between the operations that they name, and may enqueue work of their own.
class PassHooks {
 public:
  virtual ~PassHooks() = default;
  virtual void before_forward(std::size_t unit) = 0;  // the pass has not read the unit's weights yet
  virtual void after_backward(std::size_t unit) = 0;  // the pass has added to all of the unit's gradients
};

}  // namespace goat
