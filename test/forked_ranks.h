// Ranks as processes of their own, forked from the test.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "kernels/shared_exchange.h"

namespace goat::test {

// Starts processes that do body(rank) and then end. What it returns or throws can be collected.
class ForkedRanks {
 public:
  using Body = std::function<std::string(int rank)>;

  ForkedRanks() = default;
  ForkedRanks(int size, const Body& body) {
    for (int r = 0; r < size; ++r) start(r, body);
  }
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;
  ~ForkedRanks() {
    for (std::size_t i = 0; i < processes_.size(); ++i) {
      signal(static_cast<int>(i), SIGKILL);
      waitpid(processes_[i], nullptr, 0);
      close(reports_[i]);
    }
  }

  void start(int rank, const Body& body) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    std::fflush(nullptr);
    const pid_t process = fork();
    if (process == 0) {
      std::string text;
      try {
        text = body(rank);
      } catch (const std::exception& error) {
        text = std::string("thrown: ") + error.what();
      }
      if (write(ends[1], text.data(), text.size()) != static_cast<ssize_t>(text.size())) _exit(1);
      _exit(0);
    }
    close(ends[1]);
    processes_.push_back(process);
    reports_.push_back(ends[0]);
  }

  void signal(int index, int number) { kill(processes_[static_cast<std::size_t>(index)], number); }

  // What the process has returned; waits for its end.
  std::string report(int index) {
    std::string text;
    const int file = reports_[static_cast<std::size_t>(index)];
    for (;;) {
      pollfd ready{file, POLLIN, 0};
      if (poll(&ready, 1, 60'000) <= 0) return text + "(still running after 60 s)";
      char part[4096];
      const ssize_t count = read(file, part, sizeof part);
      if (count <= 0) return text;
      text.append(part, static_cast<std::size_t>(count));
    }
  }
  // The index of one that has ended, or is about to.
  int first_to_end() {
    std::vector<pollfd> ends;
    for (const int file : reports_) ends.push_back({file, POLLIN, 0});
    poll(ends.data(), ends.size(), 60'000);
    for (std::size_t i = 0; i < ends.size(); ++i)
      if (ends[i].revents != 0) return static_cast<int>(i);
    return -1;
  }
  std::string process_of(int index) const {
    return "process " + std::to_string(processes_[static_cast<std::size_t>(index)]);
  }

  // Returns when the process shares the segment; soon afterwards it has taken its place in it.
  void wait_until_attached(int index, const std::string& segment) const {
    const std::string maps = "/proc/" + std::to_string(processes_[static_cast<std::size_t>(index)]) + "/maps";
    for (int i = 0; i < 20'000; ++i) {
      std::ostringstream text;
      text << std::ifstream(maps).rdbuf();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (text.str().find("/" + segment) == std::string::npos) continue;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return;
    }
    throw std::runtime_error("a rank has not attached");
  }

 private:
  std::vector<pid_t> processes_;
  std::vector<int> reports_;
};

// A name that nothing else on this machine uses.
inline std::string segment_name() {
  static int count = 0;
  return "goat_test_" + std::to_string(getpid()) + "_" + std::to_string(++count);
}

inline bool segment_exists(const std::string& name) {
  const int file = shm_open(("/" + name).c_str(), O_RDONLY, 0);
  if (file >= 0) close(file);
  return file >= 0;
}

inline SharedExchangeSetup setup_of(const std::string& name, int rank, int size,
                                    std::size_t slot_bytes = 512) {
  SharedExchangeSetup setup;
  setup.name = name;
  setup.nonce = 77;
  setup.rank = rank;
  setup.size = size;
  setup.slot_bytes = slot_bytes;
  setup.start_limit = setup.time_limit = std::chrono::seconds(50);
  return setup;
}

}  // namespace goat::test
