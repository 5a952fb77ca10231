// Ranks as threads of one process, for tests: what each of them met or was told.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "train/ranks/launch.h"
#include "train/ranks/rank_group.h"
#include "train/ranks/ranks_error.h"

namespace goat::test {

inline sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Listens on a port as long as it lives.
class PortHolder {
 public:
  explicit PortHolder(int port = 0) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address = loopback(port);
    if (::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(socket_, 8) != 0)
      throw std::runtime_error("test: cannot listen");
  }
  ~PortHolder() { ::close(socket_); }
  PortHolder(const PortHolder&) = delete;
  PortHolder& operator=(const PortHolder&) = delete;

  int port() const {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length);
    return ntohs(address.sin_port);
  }

  // Takes a connection, answers the first bytes, and closes it.
  void answer_once(const std::string& bytes) const {
    const int taken = ::accept(socket_, nullptr, nullptr);
    char ignored[4096];
    if (::recv(taken, ignored, sizeof ignored, 0) >= 0)
      ::send(taken, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::close(taken);
  }

 private:
  int socket_;
};

inline int free_port() { return PortHolder().port(); }

// Once somebody listens there.
inline int connect_to(int port) {
  const sockaddr_in address = loopback(port);
  for (int trial = 0; trial < 500; ++trial) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return socket;
    ::close(socket);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw std::runtime_error("test: nobody listens");
}

inline Launch launch_of_rank(int rank, int size, int port) {
  Launch launch;
  launch.rank = rank;
  launch.size = size;
  launch.job = "job";
  launch.address = "127.0.0.1";
  launch.port = port;
  return launch;
}

struct RankSetup {
  Launch launch;
  std::vector<Field> fields = {{"commit", "abc"}};
  RankGroupOptions options = quick();
  std::chrono::milliseconds late{0};

  static RankGroupOptions quick() {
    using std::chrono::milliseconds;
    RankGroupOptions options;
    options.start_timeout = milliseconds(20'000);
    options.refusal_time = milliseconds(600);
    options.limits = {milliseconds(50), milliseconds(20'000), milliseconds(20'000), milliseconds(20'000)};
    return options;
  }
};

struct Meeting {
  int rank = 0;
  bool met = false;
  std::vector<Peer> peers;
  std::string error, said;
  int code = 0;
  std::vector<Failure> failures;  // what on_failure was called with
};

// Each setup on its own thread; `work` runs with the group of those that met. What it throws is kept.
template <class Work>
std::vector<Meeting> run_ranks(const std::vector<RankSetup>& setups, Work work) {
  std::vector<Meeting> meetings(setups.size());
  std::vector<std::thread> threads;
  std::mutex mutex;
  for (std::size_t i = 0; i < setups.size(); ++i)
    threads.emplace_back([&, i, setup = setups[i]]() mutable {
      Meeting& meeting = meetings[i];
      meeting.rank = setup.launch.rank;
      setup.options.say = [&](const std::string& line) {
        const std::lock_guard lock(mutex);
        meeting.said += line + "\n";
      };
      setup.options.on_failure = [&](const Failure& failure) { meeting.failures.push_back(failure); };
      std::this_thread::sleep_for(setup.late);
      try {
        RankGroup group(setup.launch, setup.fields, setup.options);
        meeting.met = true;
        meeting.peers = group.peers();
        work(group);
      } catch (const RanksError& error) {
        meeting.error = error.what();
        meeting.code = error.code;
      } catch (const std::exception& error) {
        meeting.error = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return meetings;
}

inline std::vector<Meeting> meet(const std::vector<RankSetup>& setups) {
  return run_ranks(setups, [](RankGroup& group) { group.finish(); });
}

// Threads and sockets of this process.
inline std::pair<std::ptrdiff_t, std::ptrdiff_t> threads_and_sockets() {
  using std::filesystem::directory_iterator;
  std::pair<std::ptrdiff_t, std::ptrdiff_t> count{0, 0};
  for ([[maybe_unused]] const auto& task : directory_iterator("/proc/self/task")) ++count.first;
  std::error_code gone;
  for (const auto& open : directory_iterator("/proc/self/fd"))
    count.second += std::filesystem::read_symlink(open, gone).string().starts_with("socket:");
  return count;
}

inline std::vector<RankSetup> ranks_of(int size) {
  std::vector<RankSetup> setups;
  const int port = free_port();
  for (int rank = 0; rank < size; ++rank) setups.push_back({launch_of_rank(rank, size, port)});
  return setups;
}

}  // namespace goat::test
