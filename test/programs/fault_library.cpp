// A library that makes one rank of a run fail at an exact moment. It is loaded before the others (LD_PRELOAD)
// by test_rank_failures.py and dev/rank_faults.py; the program knows nothing of it.
//   GOAT_TEST_FAULT  rank=1;call=pwrite;path=model;count=3;times=1;do=ACTION
//     In the process whose RANK that is, at the third call of that name on a file whose path (for rename:
//     "old" + newline + "new") contains the word, or ends with it if the word ends with '$', and as often as
//     `times` says. Several are joined by '|'.
//     call: open, write, pwrite, fsync, ftruncate, fallocate, rename, shm_open, connect, accept, send, recv,
//       wake (of those who wait for a futex in shared memory: a rank posts its part of a collective)
//     do: signal:N to itself, signal_parent:N, kill_rank:R (then this rank waits a while), exit:CODE,
//       error:ENAME (the call fails), hang, pause:SECONDS, bad_alloc (the thread's next allocation with new
//       fails)
//   GOAT_TEST_FAULT_LOG  a folder: log.R gets lines of rank R: "pid N", "shm NAME", "acts SECONDS" (of the
//     monotonic clock); with GOAT_TEST_TRACE every call of the names above, "call NAME PATH"
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <new>
#include <sstream>
#include <string>
#include <vector>

namespace {

thread_local bool next_allocation_fails = false;
thread_local bool inside = false;  // what this library calls itself does not count

struct Fault {
  std::string call, path, action, argument;
  long count = 1, times = 1;
  std::atomic<long> calls{0};
};

struct Errors {
  const char* name;
  int number;
};
constexpr Errors errors[] = {{"ENOSPC", ENOSPC}, {"EROFS", EROFS}, {"EIO", EIO}, {"EACCES", EACCES}};

std::string variable(const char* name) {
  const char* const text = std::getenv(name);
  return text ? text : "";
}

class Library {
 public:
  Library() : rank_(variable("RANK")), folder_(variable("GOAT_TEST_FAULT_LOG")) {
    traces_ = !variable("GOAT_TEST_TRACE").empty();
    if (rank_.empty()) return;
    std::istringstream all(variable("GOAT_TEST_FAULT"));
    for (std::string one; std::getline(all, one, '|');) add(one);
    log("pid " + std::to_string(::getpid()));
  }

  // The error that the call must fail with; 0: none.
  int at(const char* call, const std::string& path) {
    if (traces_) log("call " + std::string(call) + " " + path);
    int error = 0;
    for (Fault* fault : faults_) {
      if (fault->call != call || (path + "$").find(fault->path) == std::string::npos) continue;
      const long number = ++fault->calls;
      if (number >= fault->count && number < fault->count + fault->times) error = act(*fault);
    }
    return error;
  }

  bool wants_paths() const { return traces_ || !faults_.empty(); }

  void log(const std::string& line) const {
    if (folder_.empty() || rank_.empty()) return;
    const std::string name = folder_ + "/log." + rank_;
    const long file =
        ::syscall(SYS_openat, AT_FDCWD, name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0) return;
    std::string text = line;
    std::replace(text.begin(), text.end(), '\n', '>');
    text += "\n";
    if (::syscall(SYS_write, file, text.data(), text.size()) < 0) std::abort();
    ::syscall(SYS_close, file);
  }

 private:
  void add(const std::string& text) {
    auto* fault = new Fault;
    std::istringstream fields(text);
    bool meant = false;
    for (std::string field; std::getline(fields, field, ';');) {
      const std::size_t equals = field.find('=');
      const std::string key = field.substr(0, equals), value = field.substr(equals + 1);
      if (key == "rank") meant = value == rank_;
      if (key == "call") fault->call = value;
      if (key == "path") fault->path = value;
      if (key == "count") fault->count = std::stol(value);
      if (key == "times") fault->times = std::stol(value);
      if (key != "do") continue;
      fault->action = value.substr(0, value.find(':'));
      if (value.find(':') != std::string::npos) fault->argument = value.substr(value.find(':') + 1);
    }
    if (meant) faults_.push_back(fault);
  }

  int act(const Fault& fault) const {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    log("acts " + std::to_string(static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec)));
    if (fault.action == "signal") ::syscall(SYS_kill, ::getpid(), std::stoi(fault.argument));
    if (fault.action == "signal_parent") ::syscall(SYS_kill, ::getppid(), std::stoi(fault.argument));
    if (fault.action == "exit") ::_exit(std::stoi(fault.argument));
    if (fault.action == "pause") pause(std::stod(fault.argument));
    while (fault.action == "hang") ::syscall(SYS_pause);
    if (fault.action == "bad_alloc") next_allocation_fails = true;
    if (fault.action == "kill_rank") kill_rank(fault.argument);
    if (fault.action != "error") return 0;
    for (const Errors& error : errors)
      if (fault.argument == error.name) return error.number;
    std::abort();
  }

  void kill_rank(const std::string& rank) const {
    const int file = ::open((folder_ + "/log." + rank).c_str(), O_RDONLY | O_CLOEXEC);
    char text[64] = "";
    if (file < 0 || ::read(file, text, sizeof text - 1) < 5 || std::strncmp(text, "pid ", 4) != 0)
      std::abort();
    ::syscall(SYS_close, file);
    ::syscall(SYS_kill, std::atoi(text + 4), SIGKILL);
    pause(0.3);
  }

  static void pause(double seconds) {
    const timespec time{static_cast<time_t>(seconds),
                        static_cast<long>(1e9 * (seconds - static_cast<long>(seconds)))};
    ::nanosleep(&time, nullptr);
  }

  std::string rank_, folder_;
  bool traces_ = false;
  std::vector<Fault*> faults_;  // never destroyed: other threads go on at the end
};

Library& library() {
  static Library* const one = [] {
    inside = true;
    auto* made = new Library;
    inside = false;
    return made;
  }();
  return *one;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

std::string path_of(int file) {
  if (!library().wants_paths()) return "";
  char link[64], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t size = ::readlink(link, path, sizeof path);
  return {path, static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

// Whether the call fails, with errno set.
bool fails(const char* call, const std::string& path) {
  if (inside) return false;
  inside = true;
  const int before = errno, error = library().at(call, path);
  inside = false;
  errno = error ? error : before;
  return error != 0;
}

std::string text_of(const char* path) { return path ? path : ""; }

}  // namespace

#define REAL(name) static auto* const real = next<decltype(::name)>(#name)

void* operator new(std::size_t bytes) {
  if (next_allocation_fails && !inside) {
    next_allocation_fails = false;
    throw std::bad_alloc();
  }
  if (void* const memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

extern "C" {

__attribute__((constructor)) void load() { library(); }

int open(const char* path, int flags, ...) {
  REAL(open);
  va_list list;
  va_start(list, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
  va_end(list);
  return fails("open", text_of(path)) ? -1 : real(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  REAL(open64);
  va_list list;
  va_start(list, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
  va_end(list);
  return fails("open", text_of(path)) ? -1 : real(path, flags, mode);
}

ssize_t write(int file, const void* bytes, size_t count) {
  REAL(write);
  return fails("write", path_of(file)) ? -1 : real(file, bytes, count);
}

ssize_t pwrite(int file, const void* bytes, size_t count, off_t offset) {
  REAL(pwrite);
  return fails("pwrite", path_of(file)) ? -1 : real(file, bytes, count, offset);
}

ssize_t pwrite64(int file, const void* bytes, size_t count, off64_t offset) {
  REAL(pwrite64);
  return fails("pwrite", path_of(file)) ? -1 : real(file, bytes, count, offset);
}

int fsync(int file) {
  REAL(fsync);
  return fails("fsync", path_of(file)) ? -1 : real(file);
}

int ftruncate(int file, off_t bytes) noexcept {
  REAL(ftruncate);
  return fails("ftruncate", path_of(file)) ? -1 : real(file, bytes);
}

int ftruncate64(int file, off64_t bytes) noexcept {
  REAL(ftruncate64);
  return fails("ftruncate", path_of(file)) ? -1 : real(file, bytes);
}

int posix_fallocate(int file, off_t offset, off_t bytes) {
  REAL(posix_fallocate);
  return fails("fallocate", path_of(file)) ? errno : real(file, offset, bytes);
}

int rename(const char* from, const char* to) noexcept {
  REAL(rename);
  return fails("rename", text_of(from) + "\n" + text_of(to)) ? -1 : real(from, to);
}

int shm_open(const char* name, int flags, mode_t mode) {
  REAL(shm_open);
  if (flags & O_CREAT && !inside) library().log("shm " + text_of(name));
  return fails("shm_open", text_of(name)) ? -1 : real(name, flags, mode);
}

int connect(int socket, const sockaddr* address, socklen_t length) {
  REAL(connect);
  return fails("connect", "") ? -1 : real(socket, address, length);
}

int accept(int socket, sockaddr* address, socklen_t* length) {
  REAL(accept);
  return fails("accept", "") ? -1 : real(socket, address, length);
}

ssize_t send(int socket, const void* bytes, size_t count, int flags) {
  REAL(send);
  return fails("send", "") ? -1 : real(socket, bytes, count, flags);
}

ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  REAL(sendmsg);
  return fails("send", "") ? -1 : real(socket, message, flags);
}

ssize_t recv(int socket, void* bytes, size_t count, int flags) {
  REAL(recv);
  return fails("recv", "") ? -1 : real(socket, bytes, count, flags);
}

ssize_t recvmsg(int socket, msghdr* message, int flags) {
  REAL(recvmsg);
  return fails("recv", "") ? -1 : real(socket, message, flags);
}

long syscall(long number, ...) noexcept {
  using Call = long(long, ...);
  static auto* const real = next<Call>("syscall");
  va_list list;
  va_start(list, number);
  long words[6];
  for (long& word : words) word = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex && words[1] == FUTEX_WAKE && fails("wake", "")) return -1;
  return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

}  // extern "C"
