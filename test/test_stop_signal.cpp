// A signal to stop, at the worst moment.
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <vector>

#include "catch.h"
#include "train/training/stop_signal.h"

namespace goat {

namespace {
constexpr std::size_t room = 1 << 14, used = 1 << 11;  // bytes of a stack, and those that a call needs

ucontext_t outside, inside;

void receive_a_signal() {
  ::raise(SIGUSR1);
  ::swapcontext(&inside, &outside);
}

// The exit code of a process that does this.
int code_of(const std::function<int()>& act) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(act());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
}  // namespace

// oneDNN's matrix products run with the stack pointer in a buffer on the heap.
TEST_CASE("stop signal: the handler writes nothing below the stack that it interrupts") {
  CHECK(code_of([] {
          watch_stop_signals();
          ::raise(0);  // the first call would look for the function
          ::getcontext(&outside);
          std::vector<char> memory(room, 7);
          ::getcontext(&inside);
          inside.uc_stack.ss_sp = memory.data();
          inside.uc_stack.ss_size = room;
          ::makecontext(&inside, receive_a_signal, 0);
          ::swapcontext(&outside, &inside);
          const bool changed =
              std::any_of(memory.begin(), memory.end() - used, [](char byte) { return byte != 7; });
          return stop_signal() != SIGUSR1 ? 100 : changed ? 101 : 0;
        }) == 0);
}

}  // namespace goat
