// Ranks on this host without another launcher: copies of one command.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "train/ranks/launch.h"

namespace goat {

struct LocalLaunch {
  int ranks = 1;
  std::vector<std::string> command;  // the program, searched in PATH if it has no '/', and its arguments
  // After the first failure the others may end by themselves for `patience`; then they get SIGTERM, and
  // SIGKILL after `grace`. One that is stopped (SIGSTOP) gets SIGKILL at once.
  std::chrono::milliseconds patience{5000}, grace{10000};
};

// Starts the command once a rank, with the variables that launch_of() reads, and waits for all of them.
//
// Their lines on stderr come out with "[RANK] " before them; stdout is shared; only rank 0 has this
// process's stdin. SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are passed on. If this process is killed, the
// kernel kills them. OMP_NUM_THREADS becomes cores / ranks unless it is set.
//
// Returns the exit code of the first that failed (128 + signal if one was killed); else 4 if one ended with
// 4, which means stopped after saving and is no failure; else 0. Must be called while this process has one
// thread. Throws RanksError, and std::logic_error if there are other threads.
int run_ranks_here(const LocalLaunch& launch, const Environment& environment);

}  // namespace goat
