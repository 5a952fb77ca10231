// SIGTERM, SIGINT, SIGHUP (a closed terminal) and SIGUSR1 (Slurm's warning) ask a training run to finish its
// step, save and stop. A second signal ends the program at once, with two exceptions: a SIGHUP, and a signal
// within a second or two of the first, because shells and `timeout` send the same request twice. A signal
// that was ignored when the program started (nohup) stays ignored.
#pragma once

namespace goat {

void watch_stop_signals();  // to be called by the thread that computes, while no other one does
int stop_signal();          // the signal received so far, 0 for none

}  // namespace goat
