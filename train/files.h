// Files of a run: written whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "data/checksum.h"

namespace goat {

// Writes a file under a temporary name beside `path`; commit() makes it appear there whole, also after a
// power cut. Without commit() nothing is left. Failures throw std::runtime_error naming the file and the
// system's reason.
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::string_view bytes);
  void commit();  // fsync, rename, fsync of the folder

  std::uint64_t bytes() const { return bytes_; }
  std::string checksum() const { return checksum_.text(); }  // of what was written

 private:
  std::filesystem::path path_, temporary_;
  int file_ = -1;
  std::uint64_t bytes_ = 0;
  Checksum checksum_;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view contents);

std::string checksum_of_file(const std::filesystem::path& path);  // throws std::runtime_error
std::string read_small_file(const std::filesystem::path& path);   // at most 64 MiB; throws std::runtime_error
void sync_folder(const std::filesystem::path& folder);            // makes renames inside it durable

// A text file that grows by whole lines. A line that does not fit (full disk) is taken back and reported once
// on stderr; writing goes on when it can.
class LineLog {
 public:
  // Keeps the file's first `keep_bytes` bytes, drops the rest; creates the file if need be.
  LineLog(const std::filesystem::path& path, std::uint64_t keep_bytes);
  ~LineLog();
  LineLog(const LineLog&) = delete;
  LineLog& operator=(const LineLog&) = delete;
  void write(const std::string& line);

 private:
  std::filesystem::path path_;
  int file_ = -1;
  long long size_ = 0;
  bool failing_ = false;
};

}  // namespace goat
