#include "train/replicas/ranks.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <exception>
#include <functional>
#include <random>
#include <set>
#include <utility>

#include "kernels/shared_exchange.h"
#include "kernels/shared_segment.h"
#include "train/ranks/ranks_error.h"

namespace goat {

namespace {
// Tells the watchdog of every call.
class WatchedCommunicator final : public Communicator {
 public:
  WatchedCommunicator(std::unique_ptr<Communicator> inner, RankGroup& group)
      : inner_(std::move(inner)), group_(group) {
    group.watch([inner = inner_, &group] {
      group.finished(inner->completed());
      return inner->trouble();
    });
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void all_to_all(Device& device, void* receive, const void* send, std::size_t bytes) override {
    group_.enqueued(++calls_);
    inner_->all_to_all(device, receive, send, bytes);
  }
  void all_gather(Device& device, void* receive, const void* send, std::size_t bytes) override {
    group_.enqueued(++calls_);
    inner_->all_gather(device, receive, send, bytes);
  }
  void broadcast(Device& device, void* memory, std::size_t bytes, int root) override {
    group_.enqueued(++calls_);
    inner_->broadcast(device, memory, bytes, root);
  }
  void reduce_scatter(Device& device, void* receive, const void* send, std::size_t elements,
                      DType dtype) override {
    group_.enqueued(++calls_);
    inner_->reduce_scatter(device, receive, send, elements, dtype);
  }
  bool can_capture() const override { return inner_->can_capture(); }
  std::uint64_t completed() const override { return inner_->completed(); }
  std::string trouble() const override { return inner_->trouble(); }

 private:
  std::shared_ptr<Communicator> inner_;  // the watchdog may look at it for longer than this lives
  RankGroup& group_;
  std::uint64_t calls_ = 0;
};

void require_one_host(const RankGroup& group, const std::string& device) {
  std::set<std::string> hosts;
  for (const Peer& peer : group.peers()) hosts.insert(peer.host);
  if (group.peers().back().node == 0 && hosts.size() == 1) return;
  std::string names;
  for (const std::string& host : hosts) names += (names.empty() ? "" : ", ") + host;
  throw RanksError("the ranks are on several hosts (" + names + "), but those of the " + device +
                       " device exchange their data through the memory of one host; start all ranks on one "
                       "host (--ranks N)",
                   2);
}

// The number that names the ranks' shared memory; 0 until they have agreed on it. The watchdog reads it.
using Nonce = std::shared_ptr<std::atomic<std::uint64_t>>;

constexpr const char* segment_prefix = "goat-";
std::string segment_name(std::uint64_t nonce) { return std::string(segment_prefix) + std::to_string(nonce); }

// A failure ends the processes without destructors. If the ranks were just sharing the memory, and above all
// if rank 0 was killed then, its name still stands.
std::function<void(const Failure&)> with_name_removed(std::function<void(const Failure&)> on_failure,
                                                      const Nonce& nonce) {
  return [on_failure = std::move(on_failure), nonce](const Failure& failure) {
    if (const std::uint64_t number = *nonce) SharedSegment::remove(segment_name(number));
    on_failure ? on_failure(failure) : ::_exit(failure.code);
  };
}

// Signals wait until this is gone, so that none ends a process while the memory has a name.
class SignalsLater {
 public:
  SignalsLater() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsLater(const SignalsLater&) = delete;
  SignalsLater& operator=(const SignalsLater&) = delete;
  ~SignalsLater() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

std::uint64_t nonce_of_rank_0(RankGroup& group) {
  std::random_device random;
  const std::uint64_t own = std::uint64_t{random()} << 32 | random() | 1;
  const std::string text = group.gather("the name of the shared memory", std::to_string(own)).front();
  std::uint64_t nonce = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), nonce);
  if (error != std::errc{} || end != text.data() + text.size() || nonce == 0)
    throw RanksError(name_of(group.peers().front()) + " names the shared memory '" + text.substr(0, 40) +
                     "', where a number above 0 is expected: it is no rank of this program");
  return nonce;
}

// Until all ranks have attached, at most for twice start_timeout, signals wait.
std::unique_ptr<Communicator> connect_devices(RankGroup& group, const RankLimits& limits,
                                              std::chrono::milliseconds start_timeout, const Nonce& agreed) {
  if (group.rank() == 0) SharedSegment::remove_left_over(segment_prefix);
  SharedExchangeSetup setup;
  setup.nonce = nonce_of_rank_0(group);
  *agreed = setup.nonce;
  setup.name = segment_name(setup.nonce);
  setup.rank = group.rank();
  setup.size = group.size();
  setup.start_limit = start_timeout;
  setup.time_limit = limits.long_progress_timeout;  // the watchdog knows more, and ends the run before
  std::unique_ptr<SharedExchange> exchange;
  {
    const SignalsLater signals;
    // Before rank 0 makes it, all know its name, by which they remove it, and hold back their signals.
    group.gather("the use of the shared memory", "", start_timeout);
    exchange = std::make_unique<SharedExchange>(setup);
  }
  return std::make_unique<WatchedCommunicator>(std::move(exchange), group);
}

}  // namespace

Ranks one_rank() { return {std::make_unique<RankGroup>(Launch{}, std::vector<Field>{}), {single_rank()}}; }

Ranks meet_ranks(const Launch& launch, std::vector<Field> fields, RankGroupOptions options,
                 const Device& device) {
  if (launch.size == 1)
    return {std::make_unique<RankGroup>(launch, std::move(fields), options), {single_rank()}};
  const std::string name = device.info().name;
  if (name == "cuda")
    throw RanksError("--device cuda: a run has one GPU so far; start one rank, or give --device cpu", 2);
  const RankLimits limits = options.limits;
  const std::chrono::milliseconds start_timeout = options.start_timeout;
  const auto nonce = std::make_shared<std::atomic<std::uint64_t>>();
  options.on_failure = with_name_removed(std::move(options.on_failure), nonce);
  auto group = std::make_unique<RankGroup>(launch, std::move(fields), std::move(options));
  try {
    require_one_host(*group, name);
  } catch (const RanksError&) {
    group->finish();  // all ranks see it: none may take this one for lost
    throw;
  }
  std::unique_ptr<Communicator> communicator;
  try {
    communicator = connect_devices(*group, limits, start_timeout, nonce);
  } catch (const RankLost& error) {  // which may itself have ended for another rank's failure
    group->lost(error.rank, error.what());
    throw;
  } catch (const std::exception& error) {
    group->fail(error.what(), 1);
    throw;
  }
  return {std::move(group), {std::move(communicator)}};
}

}  // namespace goat
