#include "train/training/stop_signal.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <ctime>

namespace goat {

namespace {
volatile std::sig_atomic_t received = 0;
volatile std::time_t received_at = 0;

extern "C" void on_stop_signal(int signal) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  if (!received) {
    received_at = now.tv_sec;
    received = signal;
  } else if (signal != SIGHUP && now.tv_sec > received_at + 1) {
    ::_exit(128 + signal);
  }
}
}  // namespace

void watch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : std::array{SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
}

int stop_signal() { return received; }

}  // namespace goat
