// Files of a run: written whole or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace goat {

// Writes to a temporary name beside `path`, fsyncs, renames, fsyncs the folder: `path` holds either its old contents or all the new ones, also after a
// power cut. Throws std::runtime_error naming the file and the system's reason; then nothing new is left.
void write_file_atomically(const std::filesystem::path& path, const std::vector<std::string_view>& pieces);

// A text file that grows by whole lines. A line that does not fit (full disk) is taken back and reported once on stderr; writing goes on when it can.
class LineLog {
 public:
  explicit LineLog(const std::filesystem::path& path);  // creates or empties the file
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
