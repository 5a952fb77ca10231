#include "kernels/process_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace goat {

namespace {
struct ProcessStatus {
  char state = 0;  // a letter of proc(5); 0: no such process
  std::uint64_t start = 0;
};

// /proc/PID/stat: "PID (NAME) STATE ...", of which the start is the 22nd word. NAME may hold anything.
ProcessStatus status_of(std::int32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream words(line.substr(name_end + 1));
  ProcessStatus status;
  words >> status.state;
  std::string skipped;
  for (int word = 4; word < 22; ++word) words >> skipped;
  words >> status.start;
  return words ? status : ProcessStatus{};
}
}  // namespace

ProcessIdentity this_process() {
  struct stat space {};
  stat("/proc/self/ns/pid", &space);
  return {getpid(), status_of(getpid()).start, space.st_ino};
}

ProcessState state_of(const ProcessIdentity& process) {
  const ProcessStatus status = status_of(process.pid);
  switch (status.start == process.start ? status.state : 0) {
    case 0:
    case 'Z':
    case 'X':
    case 'x': return ProcessState::ended;
    case 'T':
    case 't': return ProcessState::stopped;
    default: return ProcessState::running;
  }
}

}  // namespace goat
