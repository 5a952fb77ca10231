#include "train/replicas/ranks.h"

#include <pthread.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdint>
#include <exception>
#include <mutex>
#include <random>
#include <utility>

#include "kernels/open/open_communicator.h"
#include "kernels/shared_exchange.h"
#include "kernels/shared_segment.h"
#include "train/ranks/ranks_error.h"
#include "train/replicas/levels.h"
#include "train/replicas/on_all_ranks.h"
#include "train/replicas/rank_devices.h"

namespace goat {

// The watchdog removes it.
class SharedName {
 public:
  void set(std::function<void()> remove) {
    const std::lock_guard lock(mutex_);
    remove_ = std::move(remove);
  }
  void remove() {
    const std::lock_guard lock(mutex_);
    if (remove_) remove_();
  }

 private:
  std::mutex mutex_;
  std::function<void()> remove_;
};

namespace {
constexpr Phase starting{"start", true}, connecting{"connect"};

// The communicators of this process, whose calls the watchdog takes for one sequence.
class WatchedCalls {
 public:
  explicit WatchedCalls(RankGroup& group) : group_(group) {}

  void add(std::shared_ptr<Communicator> communicator) {
    const std::lock_guard lock(mutex_);
    communicators_.push_back(std::move(communicator));
  }
  void enqueue() { group_.enqueued(++enqueued_); }

  // By the watchdog.
  std::string look() {
    const std::lock_guard lock(mutex_);
    std::uint64_t finished = 0;
    std::string trouble;
    for (const auto& communicator : communicators_) {
      finished += communicator->completed();
      if (trouble.empty()) trouble = communicator->trouble();
    }
    group_.finished(finished);
    return trouble;
  }

 private:
  RankGroup& group_;
  std::uint64_t enqueued_ = 0;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Communicator>> communicators_;
};

// Tells the watchdog of every call.
class WatchedCommunicator final : public Communicator {
 public:
  WatchedCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<WatchedCalls> calls)
      : inner_(std::move(inner)), calls_(std::move(calls)) {
    calls_->add(inner_);
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void all_to_all(Device& device, void* receive, const void* send, std::size_t bytes) override {
    calls_->enqueue();
    inner_->all_to_all(device, receive, send, bytes);
  }
  void all_gather(Device& device, void* receive, const void* send, std::size_t bytes) override {
    calls_->enqueue();
    inner_->all_gather(device, receive, send, bytes);
  }
  void broadcast(Device& device, void* memory, std::size_t bytes, int root) override {
    calls_->enqueue();
    inner_->broadcast(device, memory, bytes, root);
  }
  void reduce_scatter(Device& device, void* receive, const void* send, std::size_t elements,
                      DType dtype) override {
    calls_->enqueue();
    inner_->reduce_scatter(device, receive, send, elements, dtype);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<WatchedCommunicator>(inner_->split(color, key), calls_);
  }
  bool can_capture() const override { return inner_->can_capture(); }
  std::uint64_t completed() const override { return inner_->completed(); }
  std::string trouble() const override { return inner_->trouble(); }

 private:
  std::shared_ptr<Communicator> inner_;  // the watchdog may look at it for longer than this lives
  std::shared_ptr<WatchedCalls> calls_;
};

constexpr const char* segment_prefix = "goat-";

// A failure ends the processes without destructors. If the ranks were just sharing memory, and above all if
// rank 0 was killed then, its name still stands.
std::function<void(const Failure&)> with_name_removed(std::function<void(const Failure&)> on_failure,
                                                      const std::shared_ptr<SharedName>& name) {
  return [on_failure = std::move(on_failure), name](const Failure& failure) {
    name->remove();
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

// Signals wait until all ranks have attached, and before rank 0 names the memory, all ranks know its name.
std::unique_ptr<Communicator> connect_by_memory(Ranks& ranks) {
  const RankGroupOptions& options = ranks.group->options();
  SharedExchangeSetup setup;
  setup.nonce = nonce_of_rank_0(*ranks.group);
  setup.name = segment_prefix + std::to_string(setup.nonce);
  setup.rank = ranks.rank();
  setup.size = ranks.size();
  setup.start_limit = options.start_timeout;
  setup.time_limit =
      options.limits.long_progress_timeout;  // the watchdog knows more, and ends the run before
  ranks.shared_name->set([name = setup.name] { SharedSegment::remove(name); });
  const SignalsLater signals;
  ranks.group->gather("the use of the shared memory", "", options.start_timeout);
  return std::make_unique<SharedExchange>(setup);
}

// The simulated NCCL names shared memory as well.
std::unique_ptr<Communicator> connect_by_nccl(Ranks& ranks, const std::string& device,
                                              const Connection& connection) {
  const std::string own = ranks.first() ? communicator_id(device) : "";
  const std::string id = ranks.group->gather("the id of the communicator", own).front();
  const CommunicatorSetup setup{id, ranks.rank(), ranks.size(), connection.library_adds};
  if (device == "cuda") return open_communicator(device, setup);
  ranks.shared_name->set([device, id] { remove_shared_names(device, id); });
  const SignalsLater signals;
  ranks.group->gather("the use of the shared memory", "", ranks.group->options().start_timeout);
  return open_communicator(device, setup);
}

// Those of the ranks' nodes, if gradients are added in two levels.
void connect_levels(Ranks& ranks, std::int64_t asked, bool simulated) {
  const std::vector<Peer>& peers = ranks.group->peers();
  Levels levels;
  try {
    levels = levels_of(simulated ? on_simulated_nodes(peers) : peers, asked);
  } catch (const RanksError& error) {  // all ranks know the same peers
    throw OnAllRanks<RanksError>(error.what(), error.code);
  }
  const int nodes = levels.nodes;
  ranks.note = levels.note;
  if (nodes == 1) return;
  Communicators& communicators = ranks.communicators;
  const Sharding sharding{.rank = ranks.rank(), .size = ranks.size(), .nodes = nodes};
  communicators.node = communicators.world->split(sharding.node(), sharding.place_on_node());
  communicators.across = communicators.world->split(sharding.place_on_node(), sharding.node());
}

// NCCL connects and takes memory in its first calls: in these, so that it has it before a run plans its own.
void make_first_calls(Device& device, Communicator& ranks, bool sums) {
  constexpr std::size_t bytes = 1 << 20;
  const auto all = static_cast<std::size_t>(ranks.size()) * bytes;
  const DeviceBuffer send(device, all), receive(device, all);
  ranks.all_gather(device, receive.data(), send.data(), bytes);
  ranks.all_to_all(device, receive.data(), send.data(), bytes);
  if (sums) ranks.reduce_scatter(device, receive.data(), send.data(), bytes / sizeof(float), DType::f32);
  device.synchronize();
}

void connect_devices(Ranks& ranks, const Connection& connection, Device& device) {
  const std::string name = device.info().name;
  if (name == "cpu" && connection.library_adds)
    throw OnAllRanks<RanksError>(
        "distributed.reduce = \"nccl\": ranks of the cpu have no NCCL; set it to \"ordered\"", 2);
  ranks.group->enter(connecting);
  if (ranks.first()) SharedSegment::remove_left_over(segment_prefix);
  auto world = name == "cpu" ? connect_by_memory(ranks) : connect_by_nccl(ranks, name, connection);
  auto calls = std::make_shared<WatchedCalls>(*ranks.group);
  ranks.group->watch([calls] { return calls->look(); });
  ranks.communicators.world = std::make_unique<WatchedCommunicator>(std::move(world), std::move(calls));
  if (name != "cpu") {
    if (!connection.library_adds) connect_levels(ranks, connection.levels, name == "simt");
    for (const auto& communicator :
         {&ranks.communicators.world, &ranks.communicators.node, &ranks.communicators.across})
      if (*communicator) make_first_calls(device, **communicator, connection.library_adds);
  }
  ranks.group->enter(starting);
}

}  // namespace

Ranks one_rank() { return {std::make_unique<RankGroup>(Launch{}, std::vector<Field>{}), {single_rank()}}; }

Ranks meet_ranks(const Launch& launch, std::vector<Field> fields, RankGroupOptions options) {
  auto name = std::make_shared<SharedName>();
  options.on_failure = with_name_removed(std::move(options.on_failure), name);
  auto group = std::make_unique<RankGroup>(launch, std::move(fields), std::move(options));
  return {std::move(group), {launch.size == 1 ? single_rank() : nullptr}, std::move(name)};
}

void connect_ranks(Ranks& ranks, const Connection& connection,
                   const std::function<Device&(const DevicePlace&)>& open) {
  RankGroup& group = *ranks.group;
  if (group.size() == 1) {
    open({});
    return;
  }
  try {
    Device* device = nullptr;
    on_all_ranks(group, "the opening of the device", [&] {
      device = &open(place_of(group));
      return std::string();
    });
    require_matching_devices(group, *device);
    connect_devices(ranks, connection, *device);
  } catch (const RankLost& error) {  // which may itself have ended for another rank's failure
    group.lost(error.rank, error.what());
    throw;
  } catch (const std::exception& error) {
    if (thrown_on_all_ranks(error))
      group.finish();  // none may take this one for lost
    else
      group.fail(error.what(), 1);
    throw;
  }
}

}  // namespace goat
