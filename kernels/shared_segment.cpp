#include "kernels/shared_segment.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

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
}  // namespace

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
