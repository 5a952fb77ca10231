#include "train/files/standard_output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

namespace goat {

namespace {
bool reader_has_left() {
  pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}
}  // namespace

void fill_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(descriptor, F_GETFD) < 0)
      // open() returns the lowest free number, which is `descriptor`.
      ::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

void finish_standard_output() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && !std::ferror(stdout)) return;
  // An earlier write failed, but its errno is lost. Writing once more gives the reason again.
  const bool unknown = flushed && ::write(STDOUT_FILENO, "\n", 1) == 1;
  const int reason = errno;
  if (reason == EPIPE || reader_has_left()) return;
  throw std::runtime_error(std::string("cannot write to stdout: ") +
                           (unknown ? "some of the output is lost" : std::strerror(reason)));
}

}  // namespace goat
