#include "train/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <vector>

namespace goat {

namespace fs = std::filesystem;

namespace {
std::runtime_error failure(const char* what, const fs::path& path) {
  return std::runtime_error(std::string("cannot ") + what + " " + path.string() + ": " +
                            std::strerror(errno));
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
}  // namespace

FileWriter::FileWriter(const fs::path& path) : path_(path), temporary_(path.string() + ".partial") {
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ < 0) throw failure("create", temporary_);
}

FileWriter::~FileWriter() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

void FileWriter::write(std::string_view bytes) {
  if (!write_all(file_, bytes)) throw failure("write", path_);
  checksum_.add(bytes.data(), bytes.size());
  bytes_ += bytes.size();
}

void FileWriter::commit() {
  if (::fsync(file_) != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0)
    throw failure("write", path_);
  ::close(file_);
  file_ = -1;
  sync_folder(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
}

void write_file_atomically(const fs::path& path, std::string_view contents) {
  FileWriter file(path);
  file.write(contents);
  file.commit();
}

std::string checksum_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw failure("read", path);
  Checksum checksum;
  std::vector<char> buffer(1 << 20);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || file.gcount() > 0)
    checksum.add(buffer.data(), static_cast<std::size_t>(file.gcount()));
  return checksum.text();
}

std::string read_small_file(const fs::path& path) {
  constexpr std::uintmax_t limit = std::uintmax_t{64} << 20;
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) throw failure("read", path);
  if (size > limit)
    throw std::runtime_error("cannot read " + path.string() + ": " + std::to_string(size) +
                             " bytes are more than such a file has");
  std::string contents(static_cast<std::size_t>(size), '\0');
  file.read(contents.data(), static_cast<std::streamsize>(size));
  contents.resize(static_cast<std::size_t>(file.gcount()));
  return contents;
}

void sync_folder(const fs::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;  // not every file system lets a folder be opened; the rename itself has succeeded
  ::fsync(file);
  ::close(file);
}

LineLog::LineLog(const fs::path& path, std::uint64_t keep_bytes)
    : path_(path), size_(static_cast<long long>(keep_bytes)) {
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) throw failure("create", path);
  if (::ftruncate(file_, size_) != 0) {
    const std::runtime_error error = failure("write", path);
    ::close(file_);
    throw error;
  }
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
      std::fprintf(stderr, "warning: cannot write %s: %s; training goes on, lines are lost%s\n",
                   path_.c_str(), std::strerror(reason),
                   taken_back ? "" : " and the last one may be cut short");
  }
  failing_ = !good;
}

}  // namespace goat
