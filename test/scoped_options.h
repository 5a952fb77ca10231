// Options of the simulated device that a test changes and that are restored at its end.
#pragma once

#include "kernels/simt/options.h"

namespace goat::test {

class RestoredOptions {
 public:
  RestoredOptions() = default;
  RestoredOptions(const RestoredOptions&) = delete;
  RestoredOptions& operator=(const RestoredOptions&) = delete;
  ~RestoredOptions() { on_simt::options() = saved_; }
  on_simt::Options* operator->() { return &on_simt::options(); }

 private:
  on_simt::Options saved_ = on_simt::options();
};

}  // namespace goat::test
