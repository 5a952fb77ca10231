#include "kernels/shared_segment.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace goat {

namespace {
[[noreturn]] void fail(const std::string& name, const std::string& what, int error) {
  throw std::runtime_error("shared memory /dev/shm" + name + ": " + what + ": " + std::strerror(error));
}

// The name still leads to the open file.
bool names(const std::string& name, int file) {
  const int named = shm_open(name.c_str(), O_RDONLY, 0);
  if (named < 0) return false;
  struct stat a {
  }, b{};
  const bool same =
      fstat(named, &a) == 0 && fstat(file, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
  close(named);
  return same;
}

// Removes a segment whose creator has ended: nobody holds its lock.
void remove_stale(const std::string& name) {
  const int file = shm_open(name.c_str(), O_RDWR, 0);
  if (file < 0) {
    if (errno == ENOENT) return;
    fail(name, "there is one already, which cannot be opened", errno);
  }
  const bool locked = flock(file, LOCK_EX | LOCK_NB) == 0;
  const int error = errno;
  if (locked && names(name, file)) shm_unlink(name.c_str());
  close(file);
  if (!locked) fail(name, "a run that is still going on uses this name", error);
}

std::vector<std::string> names_with_digits(const std::string& prefix) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/dev/shm", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.size() > prefix.size() && name.starts_with(prefix) &&
        name.find_first_not_of("0123456789", prefix.size()) == std::string::npos)
      names.push_back("/" + name);
  }
  return names;
}

void remove_if_left_over(const std::string& name) {
  constexpr std::time_t youngest = 60;  // seconds
  const int file = shm_open(name.c_str(), O_RDWR, 0);
  if (file < 0) return;
  struct stat status {};
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
      std::time(nullptr) - status.st_mtime >= youngest && flock(file, LOCK_EX | LOCK_NB) == 0 &&
      names(name, file))
    shm_unlink(name.c_str());
  close(file);
}
}  // namespace

void SharedSegment::remove(const std::string& name) noexcept { shm_unlink(("/" + name).c_str()); }

void SharedSegment::remove_left_over(const std::string& prefix) noexcept {
  try {
    for (const std::string& name : names_with_digits(prefix)) remove_if_left_over(name);
  } catch (const std::exception&) {  // out of memory: what is left stays for the next run
  }
}

SharedSegment SharedSegment::create(const std::string& name, std::size_t bytes) {
  for (;;) {
    const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);
    if (file < 0 && errno != EEXIST) fail(name, "cannot be created", errno);
    if (file < 0) {
      remove_stale(name);
      continue;
    }
    SharedSegment segment(name, file);
    segment.created_ = true;
    if (flock(file, LOCK_EX | LOCK_NB) != 0) fail(name, "cannot be locked", errno);
    if (!names(name, file)) continue;  // taken for stale before it was locked
    if (const int error = posix_fallocate(file, 0, static_cast<off_t>(bytes)); error != 0)
      fail(name,
           std::to_string(bytes) + " bytes are not to be had (df -h /dev/shm; in a container: --shm-size)",
           error);
    segment.map(bytes);
    return segment;
  }
}

std::optional<SharedSegment> SharedSegment::open(const std::string& name) {
  const int file = shm_open(name.c_str(), O_RDWR, 0);
  if (file < 0 && errno == ENOENT) return std::nullopt;
  if (file < 0) fail(name, "cannot be opened", errno);
  SharedSegment segment(name, file);
  struct stat status {};
  if (fstat(file, &status) != 0) fail(name, "cannot be read", errno);
  if (status.st_size == 0) return std::nullopt;
  segment.map(static_cast<std::size_t>(status.st_size));
  return segment;
}

void SharedSegment::map(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (memory == MAP_FAILED) fail(name_, "cannot be mapped", errno);
  memory_ = memory;
  bytes_ = bytes;
}

SharedSegment::~SharedSegment() {
  if (created_) remove_name();
  if (memory_) munmap(memory_, bytes_);
  if (file_ >= 0) close(file_);
}

void SharedSegment::remove_name() noexcept {
  if (file_ < 0) return;
  if (names(name_, file_)) shm_unlink(name_.c_str());
  close(file_);
  file_ = -1;
}

}  // namespace goat
