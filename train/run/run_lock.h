// RunLock: only one process at a time trains in a run's folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace goat {

// Locks FOLDER/.lock with flock(2). The system releases the lock when the process ends for any reason. The
// file names the process and host that hold the lock, and holds a random number that shows other hosts that
// they see the same file.
class RunLock {
 public:
  // Throws ConfigError, naming the holder, if another process has the lock, and std::runtime_error if the
  // file cannot be made. On a file system without locks the existence of the file is the lock. There, a file
  // that a dead process left behind must be removed by hand; the error says so.
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();  // removes the file, unless the folder has been moved
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Whether the lock file is still in the folder. The folder may have been moved, or removed and made again.
  bool in_place() const;

  const std::string& nonce() const { return nonce_; }

  static constexpr const char* file_name = ".lock";
  // The nonce of the lock in the folder, whoever holds it; empty if there is none.
  static std::string nonce_in(const std::filesystem::path& folder);
  // "process 4711 on host gpu-3" if a process holds the lock now.
  static std::optional<std::string> holder(const std::filesystem::path& folder);

 private:
  std::filesystem::path path_;
  std::string nonce_;
  int file_ = -1;
};

}  // namespace goat
