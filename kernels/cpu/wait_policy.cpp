#include "kernels/cpu/wait_policy.h"

#include <omp.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace goat {

void limit_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  std::error_code unreadable;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unreadable);
  if (unreadable || setenv("GOMP_SPINCOUNT", "1000", 1) != 0) return;
  execv(program.c_str(), argv);  // returns only if it fails
}

void start_compute_threads() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // threads inherit it
#pragma omp parallel num_threads(omp_get_max_threads())
  {}
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace goat
