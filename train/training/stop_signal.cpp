#include "train/training/stop_signal.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <system_error>

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

// oneDNN's matrix products (up to 3.11) keep an address of the heap in the stack pointer: a handler on the
// thread's own stack would overwrite what lies before that.
void give_handlers_a_stack() {
  alignas(64) static std::array<char, 64 << 10> memory;
  stack_t stack{};
  stack.ss_sp = memory.data();
  stack.ss_size = memory.size();
  if (::sigaltstack(&stack, nullptr) != 0)
    throw std::system_error(errno, std::generic_category(), "sigaltstack");
}
}  // namespace

void watch_stop_signals() {
  give_handlers_a_stack();
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  for (const int signal : std::array{SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
}

int stop_signal() { return received; }

}  // namespace goat
