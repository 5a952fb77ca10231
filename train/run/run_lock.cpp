#include "train/run/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iomanip>
#include <random>
#include <sstream>
#include <stdexcept>

#include "train/config/config.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
enum class Outcome { locked, held_by_another, no_locks_here };

Outcome try_lock(int file) {
  while (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    return errno == EWOULDBLOCK ? Outcome::held_by_another : Outcome::no_locks_here;
  }
  return Outcome::locked;
}

std::string this_process() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return "process " + std::to_string(::getpid()) + " on host " + host;
}

// The lines of the file: its holder, and the holder's nonce.
struct Contents {
  std::string holder, nonce;
};

Contents contents(int file) {
  char text[512];
  const ssize_t count = ::pread(file, text, sizeof text, 0);
  std::istringstream lines(std::string(text, static_cast<std::size_t>(std::max<ssize_t>(count, 0))));
  Contents found;
  std::getline(lines, found.holder);
  std::getline(lines, found.nonce);
  return found;
}

std::string random_digits() {
  std::random_device random;
  std::ostringstream digits;
  for (int word = 0; word < 4; ++word) digits << std::hex << std::setw(8) << std::setfill('0') << random();
  return digits.str();
}

// Whether the path still names the open file: its last holder may have removed it since.
bool is_named(int file, const fs::path& path) {
  struct stat opened {
  }, named{};
  return ::fstat(file, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

[[noreturn]] void refuse(const fs::path& folder, const std::string& holder) {
  throw ConfigError("run folder " + folder.string() + ": " + (holder.empty() ? "another process" : holder) +
                    " is training there; wait until it has ended, or give another --out");
}
}  // namespace

RunLock::RunLock(const fs::path& folder) : path_(folder / file_name), nonce_(random_digits()) {
  for (;;) {
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (file_ < 0) throw std::runtime_error("cannot create " + path_.string() + ": " + std::strerror(errno));
    const Outcome outcome = try_lock(file_);
    const std::string before = contents(file_).holder;
    if (outcome == Outcome::locked && is_named(file_, path_)) break;
    if (outcome == Outcome::no_locks_here && before.empty()) break;
    ::close(file_);
    file_ = -1;
    if (outcome == Outcome::held_by_another) refuse(folder, before);
    if (outcome == Outcome::no_locks_here)
      throw ConfigError("run folder " + folder.string() + ": " + before +
                        " is training there or ended abruptly (this file system has no locks to tell); if it "
                        "has ended, remove " +
                        path_.string());
  }
  const std::string text = this_process() + "\n" + nonce_ + "\n";
  // Synced, so that other hosts see it.
  if (::ftruncate(file_, 0) != 0 || ::pwrite(file_, text.data(), text.size(), 0) < 0 || ::fsync(file_) != 0) {
    // The lock works without its text: a full disk must not keep a run from starting.
  }
}

RunLock::~RunLock() {
  if (in_place()) ::unlink(path_.c_str());  // still locked, so that nobody else can hold it
  ::close(file_);
}

bool RunLock::in_place() const { return is_named(file_, path_); }

std::string RunLock::nonce_in(const fs::path& folder) {
  const int file = ::open((folder / file_name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return "";
  const std::string nonce = contents(file).nonce;
  ::close(file);
  return nonce;
}

std::optional<std::string> RunLock::holder(const fs::path& folder) {
  const int file = ::open((folder / file_name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return std::nullopt;
  const Outcome outcome = ::flock(file, LOCK_SH | LOCK_NB) == 0 ? Outcome::locked
                          : errno == EWOULDBLOCK                ? Outcome::held_by_another
                                                                : Outcome::no_locks_here;
  const std::string holder = contents(file).holder;
  ::close(file);
  if (outcome == Outcome::locked) return std::nullopt;
  return holder.empty() ? "another process" : holder;
}

}  // namespace goat
