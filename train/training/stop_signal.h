// SIGTERM, SIGINT, SIGHUP (a closed terminal) and SIGUSR1 (Slurm's warning) ask a training run to finish its
// step, save and stop. A second signal ends the program at once, with two exceptions: a SIGHUP, and a signal
// within a second or two of the first, because shells and `timeout` send the same request twice. A signal
// that was ignored when the program started (nohup) stays ignored.
#pragma once

namespace goat {

// Called by the thread that trains. The threads that compute with it must not take signals
// (start_compute_threads).
void watch_stop_signals();
int stop_signal();  // the signal received so far, 0 for none

}  // namespace goat
