// What the tests of kernels/simt share: device arrays, reports as text, marked source lines. Included by
// files that bring kernels along.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/target.cuh"
#include "test/catch.h"
#include "test/scoped_options.h"

namespace goat::test {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool address_sanitizer = true;
#else
constexpr bool address_sanitizer = false;
#endif

// Options of one test: one host thread unless asked for, so that reports and marks are of one schedule.
// Restored at its end.
class ScopedOptions : public RestoredOptions {
 public:
  ScopedOptions() { on_simt::options().threads = 1; }
};

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size)
      : data_(static_cast<T*>(on_simt::device_allocate(size * sizeof(T)))), size_(size) {}
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    std::copy(values.begin(), values.end(), data_);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { on_simt::device_release(data_); }
  operator T*() const { return data_; }
  std::size_t size() const { return size_; }
  std::vector<T> values() const { return std::vector<T>(data_, data_ + size_); }

 private:
  T* data_;
  std::size_t size_;
};

// What enqueue() throws; "" if nothing.
inline std::string report_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

// What a child process writes while it does `action`, which AddressSanitizer or UBSan should end; the text
// ends with "exit 0" if nothing ended it, with "thrown: ..." if it threw.
inline std::string report_of_child(const std::function<void()>& action) {
  int ends[2];
  if (pipe(ends) != 0) return "pipe failed";
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    dup2(ends[1], STDOUT_FILENO);  // Catch tells of signals there
    close(ends[0]);
    try {
      action();
      std::fputs("exit 0", stderr);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "thrown: %s", error.what());
    }
    std::fflush(nullptr);
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t count; (count = read(ends[0], part, sizeof part)) > 0;)
    text.append(part, static_cast<std::size_t>(count));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return text;
}

// `MARK(0), statement;` in a kernel notes its line; marked(0) is then "test_simt_x.cpp:12".
inline const char* marked_file[8];
inline int marked_line[8];
inline void mark(int index, const char* file, int line) {
  marked_file[index] = file;
  marked_line[index] = line;
}
inline std::string marked(int index) {
  const std::string path = marked_file[index] ? marked_file[index] : "a line that did not run";
  return path.substr(path.rfind('/') + 1) + ":" + std::to_string(marked_line[index]);
}

}  // namespace goat::test

#define MARK(index) ::goat::test::mark(index, __FILE__, __LINE__)
