// The arithmetic and the memory traffic that an operation cannot avoid.
#pragma once

#include "kernels/operations.h"

namespace goat {

struct Work {
  double flops = 0;  // of matrix products only (a multiply-add is 2); what is elementwise counts as bytes
  double bytes = 0;  // every operand read once and written once; += is both
};

#define GOAT_DECLARE_WORK(Operation, name) Work work_of(const Operation& op);
GOAT_FOR_EACH_OPERATION(GOAT_DECLARE_WORK)
#undef GOAT_DECLARE_WORK

}  // namespace goat
