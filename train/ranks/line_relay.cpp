#include "train/ranks/line_relay.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace goat {

namespace {
constexpr std::size_t longest_line = 1 << 14;  // a longer one is passed on in pieces
}

bool LineRelay::read_some(int input, int rank) {
  std::array<char, 4096> bytes;
  const ssize_t count = ::read(input, bytes.data(), bytes.size());
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count > 0) begun_[rank].append(bytes.data(), static_cast<std::size_t>(count));
  take_lines(rank, count == 0);
  return count > 0;
}

void LineRelay::read_all(int input, int rank) {
  if (input < 0) return;
  pollfd there{input, POLLIN, 0};
  while (::poll(&there, 1, 0) == 1 && (there.revents & POLLIN) && read_some(input, rank)) {
  }
}

void LineRelay::take_lines(int rank, bool all) {
  std::string& begun = begun_[rank];
  const std::string prefix = "[" + std::to_string(rank) + "] ";
  std::size_t at = 0;
  for (std::size_t end; (end = begun.find('\n', at)) != std::string::npos; at = end + 1)
    queue_ += prefix + begun.substr(at, end + 1 - at);
  begun.erase(0, at);
  if (!begun.empty() && (all || begun.size() > longest_line))
    queue_ += prefix + std::exchange(begun, "") + "\n";
}

void LineRelay::add_line(const std::string& line) { queue_ += line + "\n"; }

void LineRelay::write_some() {
  const ssize_t count = ::write(output_, queue_.data(), std::min<std::size_t>(queue_.size(), 4096));
  if (count > 0) queue_.erase(0, static_cast<std::size_t>(count));
  if (count < 0 && errno != EAGAIN && errno != EINTR) queue_.clear();  // nobody reads any more
}

void LineRelay::finish(std::chrono::milliseconds patience) {
  for (const auto& [rank, begun] : begun_) take_lines(rank, true);
  pollfd ready{output_, POLLOUT, 0};
  while (waiting() && ::poll(&ready, 1, static_cast<int>(patience.count())) == 1) write_some();
}

}  // namespace goat
