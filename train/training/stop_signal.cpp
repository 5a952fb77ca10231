#include "train/training/stop_signal.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <ctime>

namespace goat {

namespace {
constexpr std::array stop_signals{SIGTERM, SIGINT, SIGHUP, SIGUSR1};

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

// oneDNN 2.6's matrix products run with the stack pointer at the begin of a page in a buffer on the heap (of
// a tiny model's training time on AVX-512, 14 %). What the kernel pushes for a handler, some 3 KB there,
// would be written below, even over what lies before the buffer. So the handler has a stack of its own in the
// thread that calls this, and the other threads of OpenMP do not get the signals.
void keep_signals_off_the_stack() {
  static std::array<char, 1 << 16> stack;
  stack_t own{};
  own.ss_sp = stack.data();
  own.ss_size = stack.size();
  ::sigaltstack(&own, nullptr);
  const pthread_t here = ::pthread_self();
#pragma omp parallel
  if (!::pthread_equal(here, ::pthread_self())) {
    sigset_t stops;
    ::sigemptyset(&stops);
    for (const int signal : stop_signals) ::sigaddset(&stops, signal);
    ::pthread_sigmask(SIG_BLOCK, &stops, nullptr);
  }
}
}  // namespace

void watch_stop_signals() {
  keep_signals_off_the_stack();
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  for (const int signal : stop_signals) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
}

int stop_signal() { return received; }

}  // namespace goat
