#include "train/files/file_pieces.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "train/files/files.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
void look_again(const fs::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file >= 0) ::close(file);
}
}  // namespace

bool await_file(const fs::path& path, const std::function<bool()>& seen) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds_until_seen);
  while (!seen()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    look_again(path.parent_path().parent_path());
    look_again(path.parent_path());
  }
  return true;
}

void create_file(const fs::path& path, std::uint64_t bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) throw file_error("create", path);
  const bool sized = ::ftruncate(file, static_cast<off_t>(bytes)) == 0;
  const int reason = errno;
  const bool closed = ::close(file) == 0;
  if (!sized) errno = reason;
  if (!sized || !closed) throw file_error("write", path);
}

PieceWriter::PieceWriter(const fs::path& path) : path_(path) {
  int reason = 0;
  await_file(path, [&] {
    file_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    reason = errno;
    return file_ >= 0 || (reason != ENOENT && reason != ESTALE);
  });
  errno = reason;
  if (file_ < 0) throw file_error("write", path_);
}

PieceWriter::~PieceWriter() {
  if (file_ >= 0) ::close(file_);
}

void PieceWriter::write(std::uint64_t offset, std::string_view bytes) {
  if (bytes.empty()) return;
  if (!checksum_ || pieces_.back().offset + pieces_.back().bytes != offset) {
    finish_piece();
    pieces_.push_back({offset});
    checksum_.emplace();
  }
  checksum_->add(bytes.data(), bytes.size());
  pieces_.back().bytes += bytes.size();
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw file_error("write", path_);
    bytes.remove_prefix(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

void PieceWriter::finish_piece() {
  if (checksum_) pieces_.back().checksum = checksum_->text();
  checksum_.reset();
}

std::vector<FilePiece> PieceWriter::commit() {
  finish_piece();
  if (::fsync(file_) != 0 || ::close(std::exchange(file_, -1)) != 0) throw file_error("write", path_);
  return std::move(pieces_);
}

std::string checksum_of_range(const fs::path& path, std::uint64_t offset, std::uint64_t bytes) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  if (!file) throw file_error("read", path);
  Checksum checksum;
  std::vector<char> buffer(1 << 20);
  while (bytes > 0) {
    const std::uint64_t count = std::min<std::uint64_t>(bytes, buffer.size());
    if (!file.read(buffer.data(), static_cast<std::streamsize>(count))) {
      if (file.eof()) throw std::runtime_error("cannot read " + path.string() + ": it was cut short");
      throw file_error("read", path);
    }
    checksum.add(buffer.data(), count);
    bytes -= count;
  }
  return checksum.text();
}

}  // namespace goat
