// RunLock: one process at a time trains in a run's folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace goat {

// Holds FOLDER/.lock with flock(2), which the system gives back when the process ends, however it ends. The
// file names the holder's process and host.
class RunLock {
 public:
  // Throws ConfigError that names the holder where another process has the lock, std::runtime_error where the
  // file cannot be made. On a file system without locks the file alone is the lock: one that an ended process
  // has left must be removed by hand, which the error says.
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();  // removes the file, unless the folder has gone elsewhere
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Whether the lock still stands in the folder: the folder may have been moved, or removed and made again.
  bool in_place() const;

  static constexpr const char* file_name = ".lock";
  // "process 4711 on host gpu-3" where somebody holds the lock now.
  static std::optional<std::string> holder(const std::filesystem::path& folder);

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace goat
