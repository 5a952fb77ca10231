#include "kernels/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace goat {

namespace {
// The number in a file that holds one number. nullopt if there is no such file or it holds "max".
std::optional<std::size_t> number_in(const char* path) {
  std::ifstream file(path);
  std::size_t value;
  if (file >> value) return value;
  return std::nullopt;
}
}  // namespace

std::size_t available_memory() {
  std::size_t available = std::numeric_limits<std::size_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);)
    if (line.starts_with("MemAvailable:")) available = std::stoull(line.substr(13)) * 1024;
  if (const auto limit = number_in("/sys/fs/cgroup/memory.max")) {
    std::size_t used = number_in("/sys/fs/cgroup/memory.current").value_or(0);
    std::ifstream statistics("/sys/fs/cgroup/memory.stat");
    std::string name;
    // The system drops cached files if a program needs the memory.
    for (std::size_t bytes; statistics >> name >> bytes;)
      if (name == "active_file" || name == "inactive_file") used -= std::min(used, bytes);
    available = std::min(available, *limit - std::min(*limit, used));
  }
  return available;
}

}  // namespace goat
