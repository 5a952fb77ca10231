// Which process: a process number alone may be given to another process later.
#pragma once

#include <cstdint>

namespace goat {

struct ProcessIdentity {
  std::int32_t pid = 0;
  std::uint64_t start = 0;      // clock ticks since the machine booted
  std::uint64_t pid_space = 0;  // processes of different spaces (containers) do not see each other

  bool operator==(const ProcessIdentity&) const = default;
};

enum class ProcessState { running, stopped, ended };  // ended: also one that its parent has not waited for

ProcessIdentity this_process();
ProcessState state_of(const ProcessIdentity& process);

}  // namespace goat
