#include "kernels/cpu/wait_policy.h"

#include <unistd.h>

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

}  // namespace goat
