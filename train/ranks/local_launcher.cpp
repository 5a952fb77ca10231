#include "train/ranks/local_launcher.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "train/ranks/line_relay.h"
#include "train/ranks/ranks_error.h"

namespace goat {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::array forwarded{SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
constexpr int stopped_after_saving = 4;

[[noreturn]] void throw_errno(const std::string& what) {
  throw RanksError(what + ": " + std::strerror(errno));
}

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }

 private:
  int number_;
};

struct Copy {
  int rank = 0;
  pid_t pid = -1;
  bool running = false, stopped = false;
  Descriptor errors;  // what it writes to stderr
};

int cores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// A socket that listens on a free port of the loopback. Rank 0 inherits it, so nobody can take the port in
// between.
std::pair<Descriptor, int> listen_on_loopback(int ranks) {
  Descriptor listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const general = reinterpret_cast<sockaddr*>(&address);
  if (listening.get() < 0 || ::bind(listening.get(), general, length) != 0 ||
      ::listen(listening.get(), std::max(ranks, 16)) != 0 ||
      ::getsockname(listening.get(), general, &length) != 0)
    throw_errno("--ranks: cannot listen on 127.0.0.1");
  return {std::move(listening), ntohs(address.sin_port)};
}

class Copies {
 public:
  Copies(const LocalLaunch& launch, const Environment& environment) : launch_(launch), base_(environment) {
    sigset_t watched;
    ::sigemptyset(&watched);
    ::sigaddset(&watched, SIGCHLD);
    for (const int signal : forwarded) ::sigaddset(&watched, signal);
    ::sigprocmask(SIG_BLOCK, &watched, &before_);
    pipe_before_ = ::signal(SIGPIPE, SIG_IGN);
    signals_ = Descriptor(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
    if (signals_.get() < 0) throw_errno("--ranks: signalfd");
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;
  ~Copies() {
    for (Copy& copy : copies_)
      if (copy.running) {
        ::kill(copy.pid, SIGKILL);
        ::waitpid(copy.pid, nullptr, 0);
      }
    ::signal(SIGPIPE, pipe_before_);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }

  void start() {
    auto [listening, port] = listen_on_loopback(launch_.ranks);
    base_["MASTER_ADDR"] = "127.0.0.1";
    base_["MASTER_PORT"] = std::to_string(port);
    base_["WORLD_SIZE"] = base_["LOCAL_WORLD_SIZE"] = std::to_string(launch_.ranks);
    base_["GOAT_JOB"] = std::to_string(::getpid()) + "-" +
                        std::to_string(std::chrono::system_clock::now().time_since_epoch().count());
    base_.emplace("OMP_NUM_THREADS", std::to_string(std::max(1, cores() / launch_.ranks)));
    for (int rank = 0; rank < launch_.ranks; ++rank) start(rank, listening.get());
  }

  int wait() {
    while (running() > 0) {
      poll_once();
      take_signals();
      reap();
      hurry();
    }
    for (Copy& copy : copies_) relay_.read_all(copy.errors.get(), copy.rank);  // what is still in the pipes
    relay_.finish(std::chrono::seconds(5));
    return code_.value_or(stopped_ ? stopped_after_saving : 0);
  }

 private:
  long running() const {
    return std::count_if(copies_.begin(), copies_.end(), [](const Copy& copy) { return copy.running; });
  }

  void start(int rank, int listening) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("--ranks: pipe");
    Descriptor reading(ends[0]), writing(ends[1]);
    ::fcntl(reading.get(), F_SETFL, O_NONBLOCK);
    std::vector<std::string> settings = settings_of(rank, listening);
    std::vector<char*> words, variables;
    for (const std::string& word : launch_.command) words.push_back(const_cast<char*>(word.c_str()));
    for (std::string& setting : settings) variables.push_back(setting.data());
    words.push_back(nullptr);
    variables.push_back(nullptr);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) throw_errno("--ranks: fork");
    if (pid == 0) become(rank, parent, writing.get(), listening, words.data(), variables.data());
    copies_.push_back({rank, pid, true, false, std::move(reading)});
  }

  std::vector<std::string> settings_of(int rank, int listening) const {
    Environment own = base_;
    own["RANK"] = own["LOCAL_RANK"] = std::to_string(rank);
    if (rank == 0) own["GOAT_LISTENING"] = std::to_string(listening);
    std::vector<std::string> settings;
    settings.reserve(own.size());
    for (const auto& [name, value] : own) settings.push_back(name + "=" + value);
    return settings;
  }

  // In the child, after fork: only calls that are safe there.
  [[noreturn]] void become(int rank, pid_t parent, int errors, int listening, char** words,
                           char** variables) const {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(128 + SIGKILL);  // the launcher was gone before the line above
    if (rank == 0) {
      ::fcntl(listening, F_SETFD, 0);
    } else if (const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC); nothing >= 0) {
      ::dup2(nothing, STDIN_FILENO);
    }
    ::dup2(errors, STDERR_FILENO);
    ::signal(SIGPIPE, pipe_before_);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
    ::execvpe(words[0], words, variables);
    const char* const known = ::strerrordesc_np(errno);
    const std::string_view reason = known ? known : "unknown error";
    for (const std::string_view part : {std::string_view(words[0]), std::string_view(": cannot be started: "),
                                        reason, std::string_view("\n")})
      if (::write(STDERR_FILENO, part.data(), part.size()) < 0) break;
    ::_exit(127);
  }

  void poll_once() {
    std::vector<pollfd> watched{{signals_.get(), POLLIN, 0}};
    if (relay_.waiting()) watched.push_back({STDERR_FILENO, POLLOUT, 0});
    for (const Copy& copy : copies_)
      if (copy.errors.get() >= 0 && !relay_.full()) watched.push_back({copy.errors.get(), POLLIN, 0});
    int wait = -1;
    if (next_)
      wait = std::max<int>(
          0, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(*next_ - Clock::now()).count()));
    ::poll(watched.data(), watched.size(), wait);
    for (const pollfd& one : watched) {
      if (!one.revents) continue;
      if (one.fd == STDERR_FILENO) relay_.write_some();
      for (Copy& copy : copies_)
        if (copy.errors.get() == one.fd && !relay_.read_some(one.fd, copy.rank)) copy.errors = Descriptor();
    }
  }

  void take_signals() {
    signalfd_siginfo one{};
    while (::read(signals_.get(), &one, sizeof one) == static_cast<ssize_t>(sizeof one)) {
      // A terminal sends to the whole process group: the copies have it already.
      if (one.ssi_signo == SIGCHLD || one.ssi_code == SI_KERNEL) continue;
      send(static_cast<int>(one.ssi_signo));
    }
  }

  void send(int signal) const {
    for (const Copy& copy : copies_)
      if (copy.running) ::kill(copy.pid, signal);
  }

  void reap() {
    for (Copy& copy : copies_) {
      int status = 0;
      if (!copy.running || ::waitpid(copy.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) != copy.pid)
        continue;
      copy.stopped = WIFSTOPPED(status);
      copy.running = copy.stopped || WIFCONTINUED(status);
      if (copy.running) continue;
      const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      stopped_ = stopped_ || code == stopped_after_saving;
      if (code != 0 && code != stopped_after_saving) failed(copy, status, code);
    }
  }

  void failed(Copy& copy, int status, int code) {
    relay_.read_all(copy.errors.get(), copy.rank);  // its own last words stand before ours
    const std::string how = WIFSIGNALED(status) ? "was killed by signal " + std::to_string(WTERMSIG(status)) +
                                                      " (" + ::strsignal(WTERMSIG(status)) + ")"
                                                : "ended with exit code " + std::to_string(code);
    relay_.add_line("rank " + std::to_string(copy.rank) + " (pid " + std::to_string(copy.pid) + ") " + how);
    if (code_) return;
    code_ = code;
    next_ = Clock::now() + launch_.patience;
  }

  // Ends what still runs after a failure. A copy that is stopped hears nothing else.
  void hurry() {
    for (const Copy& copy : copies_)
      if (code_ && copy.running && copy.stopped) ::kill(copy.pid, SIGKILL);
    if (!next_ || Clock::now() < *next_) return;
    send(terminated_ ? SIGKILL : SIGTERM);
    next_ = Clock::now() + (terminated_ ? std::chrono::milliseconds(1000) : launch_.grace);
    terminated_ = true;
  }

  const LocalLaunch& launch_;
  Environment base_;
  sigset_t before_{};
  void (*pipe_before_)(int) = SIG_DFL;
  Descriptor signals_;
  std::vector<Copy> copies_;
  LineRelay relay_{STDERR_FILENO};
  std::optional<int> code_;  // of the first failure
  bool stopped_ = false, terminated_ = false;
  std::optional<Clock::time_point> next_;  // when what still runs is ended
};

void check(const LocalLaunch& launch, const Environment& environment) {
  if (launch.ranks < 1 || launch.ranks > 1024)
    throw RanksError("--ranks " + std::to_string(launch.ranks) + ": a number from 1 to 1024 is expected", 2);
  if (const Launch outer = launch_of(environment); outer.size > 1)
    throw RanksError("--ranks " + std::to_string(launch.ranks) + " inside " + outer.launcher +
                         ", which has " + std::to_string(outer.size) + " ranks already: use one of them",
                     2);
  const std::filesystem::directory_iterator threads("/proc/self/task"), end;
  if (std::distance(threads, end) != 1) throw std::logic_error("--ranks: this process has threads already");
}

}  // namespace

int run_ranks_here(const LocalLaunch& launch, const Environment& environment) {
  check(launch, environment);
  Copies copies(launch, without_launch(environment));
  copies.start();
  return copies.wait();
}

}  // namespace goat
