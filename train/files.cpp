#include "train/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace goat {

namespace {
std::runtime_error failure(const char* what, const std::filesystem::path& path) {
  return std::runtime_error(std::string("cannot ") + what + " " + path.string() + ": " + std::strerror(errno));
}

// Writes everything; returns false with errno set if it cannot.
bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

void sync_folder(const std::filesystem::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;  // not every file system lets a folder be opened; the rename itself has succeeded
  ::fsync(file);
  ::close(file);
}
}  // namespace

void write_file_atomically(const std::filesystem::path& path, const std::vector<std::string_view>& pieces) {
  const std::filesystem::path temporary = path.string() + ".tmp";
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) throw failure("create", temporary);
  bool good = true;
  for (const std::string_view piece : pieces) good = good && write_all(file, piece);
  good = good && ::fsync(file) == 0;
  const int reason = errno;
  ::close(file);
  errno = reason;
  if (!good || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const std::runtime_error error = failure("write", path);
    ::unlink(temporary.c_str());
    throw error;
  }
  sync_folder(path.has_parent_path() ? path.parent_path() : ".");
}

LineLog::LineLog(const std::filesystem::path& path) : path_(path) {
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ < 0) throw failure("create", path);
}

LineLog::~LineLog() { ::close(file_); }

void LineLog::write(const std::string& line) {
  const bool good = ::lseek(file_, size_, SEEK_SET) == size_ && write_all(file_, line + "\n");
  if (good) {
    size_ += static_cast<long long>(line.size()) + 1;
  } else {
    const int reason = errno;
    const bool taken_back = ::ftruncate(file_, size_) == 0;
    if (!failing_)
      std::fprintf(stderr, "warning: cannot write %s: %s; training goes on, lines are lost%s\n", path_.c_str(), std::strerror(reason),
                   taken_back ? "" : " and the last one may be cut short");
  }
  failing_ = !good;
}

}  // namespace goat
