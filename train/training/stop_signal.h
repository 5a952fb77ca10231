// SIGTERM, SIGINT, SIGHUP (a closed terminal) and SIGUSR1 (Slurm's warning) ask a training run to finish its
// step, save and stop. Another one ends the program at once, unless it follows within a second or two (shells
// and `timeout` send the same request twice) or is a SIGHUP. A signal that the program was started to ignore
// (nohup) stays ignored.
#pragma once

namespace goat {

void watch_stop_signals();
int stop_signal();  // the signal received so far, 0 for none

}  // namespace goat
