// Files of a run: each is written completely or not at all.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace goat {

// "cannot open /run/model.safetensors: No space left on device", by errno.
std::runtime_error file_error(const char* what, const std::filesystem::path& path);

// Writes a file under a temporary name beside it, NAME.PID.partial. commit() renames it, so that it appears
// complete, even after a power failure, with the permissions of the file that it replaces. Without commit()
// nothing is left. If `path` is a symbolic link, the file that it leads to is written; the link stays.
//
// A fifo or a character device (/dev/null, /dev/stdout, /dev/fd/N) is written directly. A reader that has
// closed it is no failure. A folder, a block device or a socket is refused. Failures throw std::runtime_error
// with the file and the reason.
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::string_view bytes);
  void commit();  // fsync, rename, fsync of the folder

 private:
  void create_partial(mode_t mode);

  std::filesystem::path path_, temporary_;  // temporary_ is empty if the file is written directly
  int file_ = -1;
};

// Why a FileWriter for `path` would fail, as far as this is known without writing. Empty if none is known.
std::string why_not_writable(const std::filesystem::path& path);

// Writes one file with a FileWriter. Throws std::runtime_error.
void write_file_atomically(const std::filesystem::path& path, std::string_view contents);

std::string read_small_file(const std::filesystem::path& path);  // at most 64 MiB; throws std::runtime_error
void sync_folder(const std::filesystem::path& folder);           // makes renames inside the folder durable

// A text file that grows by whole lines. A line that cannot be written (full disk) is removed again and
// reported once on stderr. Writing continues as soon as it is possible.
class LineLog {
 public:
  // Keeps the file's first `keep_bytes` bytes and drops the rest. Creates the file if necessary.
  // Throws std::runtime_error if it cannot.
  LineLog(const std::filesystem::path& path, std::uint64_t keep_bytes);
  ~LineLog();
  LineLog(const LineLog&) = delete;
  LineLog& operator=(const LineLog&) = delete;
  void write(const std::string& line);  // appends the line and a newline

 private:
  std::filesystem::path path_;
  int file_ = -1;
  long long size_ = 0;
  bool failing_ = false;
};

}  // namespace goat
