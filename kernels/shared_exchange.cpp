#include "kernels/shared_exchange.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <new>
#include <thread>

namespace goat {

namespace {
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds look_interval{10};
constexpr std::size_t line = 64;              // what one rank writes shares no cache line with another's
constexpr std::uint32_t first_round = -100u;  // the number soon begins again at 0: so that this is tested

std::size_t round_up(std::size_t bytes) { return (bytes + line - 1) / line * line; }

std::size_t part(std::uint64_t bytes, std::size_t first, std::size_t chunk) {
  return first < bytes ? std::min<std::uint64_t>(bytes - first, chunk) : 0;
}

// Waits while `word` is `seen`, at most `limit`; may return earlier.
void wait_for_change(std::atomic<std::uint32_t>& word, std::uint32_t seen, milliseconds limit) {
  const timespec time{limit.count() / 1000, limit.count() % 1000 * 1'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}
void wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}
static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

std::string seconds(milliseconds time) {
  std::string text = std::to_string(static_cast<double>(time.count()) / 1000);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text + " s";
}
}  // namespace

struct alignas(line) SharedExchange::Header {
  std::atomic<std::uint64_t> nonce;  // written last; 0 until then
  std::uint64_t slot_bytes;
  std::uint64_t segment_bytes;
  std::int32_t size;
  std::atomic<std::uint32_t> complete;  // all ranks have attached
};

struct alignas(line) SharedExchange::Place {
  std::atomic<std::uint32_t> round;  // the last one that was posted
  std::atomic<std::int32_t> owner;   // the process number of the first that came as this rank; 0: none yet
  std::atomic<Presence> presence;
  ProcessIdentity process;
  Call call[2];  // of even and of odd rounds
  // Of a rank that failed:
  std::int32_t lost;  // the rank because of which it did, maybe itself
  char reason[1024];
};

// How long this process has waited. A pause much longer than what was asked for is one in which the process
// was stopped.
class SharedExchange::Patience {
 public:
  explicit Patience(milliseconds limit) : limit_(limit) {}
  bool ended() {
    const Clock::time_point now = Clock::now();
    waited_ += std::min<Clock::duration>(now - last_, 10 * look_interval);
    last_ = now;
    return waited_ >= limit_;
  }

 private:
  const Clock::duration limit_;
  Clock::duration waited_{};
  Clock::time_point last_ = Clock::now();
};

SharedExchange::Header& SharedExchange::header() const { return *static_cast<Header*>(segment_.data()); }
SharedExchange::Place& SharedExchange::place(int rank) const {
  return reinterpret_cast<Place*>(static_cast<std::byte*>(segment_.data()) + sizeof(Header))[rank];
}
std::byte* SharedExchange::slot(int rank) const {
  const auto index = 2 * static_cast<std::size_t>(rank) + round_ % 2;
  return static_cast<std::byte*>(segment_.data()) + sizeof(Header) +
         static_cast<std::size_t>(size_) * sizeof(Place) + index * header().slot_bytes;
}

// ------------------------------------------------------------------------------------------------- attaching
SharedExchange::SharedExchange(const SharedExchangeSetup& setup)
    : rank_(setup.rank),
      size_(setup.size),
      time_limit_(setup.time_limit),
      segment_(attach(setup)),
      round_(first_round),
      bytes_(static_cast<std::size_t>(setup.size)) {
  take_place();
  try {
    await_all(setup);
  } catch (...) {
    segment_.remove_name();
    throw;
  }
}

SharedSegment SharedExchange::attach(const SharedExchangeSetup& setup) {
  if (setup.size < 1 || setup.rank < 0 || setup.rank >= setup.size || setup.nonce == 0 ||
      setup.name.empty() || setup.name.find('/') != std::string::npos)
    throw std::invalid_argument("shared exchange '" + setup.name + "': rank " + std::to_string(setup.rank) +
                                " of " + std::to_string(setup.size) + ", nonce " +
                                std::to_string(setup.nonce) +
                                ": expected 0 <= rank < size, a nonce above 0 and a name without '/'");
  if (setup.rank == 0) return create(setup);
  bool other_run = false;
  for (Patience patience(setup.start_limit); !patience.ended();
       std::this_thread::sleep_for(milliseconds(1))) {
    std::optional<SharedSegment> segment = SharedSegment::open("/" + setup.name);
    if (segment && is_of_this_run(*segment, setup)) return std::move(*segment);
    other_run = segment.has_value();
  }
  throw std::runtime_error("shared memory /dev/shm/" + setup.name + ": rank 0 has not made it within " +
                           seconds(setup.start_limit) +
                           (other_run ? "; what stands there is another run's" : ""));
}

SharedSegment SharedExchange::create(const SharedExchangeSetup& setup) {
  const auto size = static_cast<std::size_t>(setup.size);
  const std::size_t slot_bytes = round_up(std::max(setup.slot_bytes, size * line));
  SharedSegment segment =
      SharedSegment::create("/" + setup.name, sizeof(Header) + size * (sizeof(Place) + 2 * slot_bytes));
  auto* header = new (segment.data()) Header{};
  auto* places = reinterpret_cast<Place*>(header + 1);
  for (std::size_t r = 0; r < size; ++r) (new (places + r) Place{})->round = first_round;
  header->slot_bytes = slot_bytes;
  header->segment_bytes = segment.bytes();
  header->size = setup.size;
  header->nonce.store(setup.nonce, std::memory_order_release);
  return segment;
}

bool SharedExchange::is_of_this_run(const SharedSegment& segment, const SharedExchangeSetup& setup) {
  if (segment.bytes() < sizeof(Header)) return false;
  const auto& header = *static_cast<const Header*>(segment.data());
  if (header.nonce.load(std::memory_order_acquire) != setup.nonce || header.segment_bytes != segment.bytes())
    return false;
  if (header.size != setup.size)
    throw std::runtime_error("shared memory /dev/shm/" + setup.name + ": rank " + std::to_string(setup.rank) +
                             " was told of " + std::to_string(setup.size) + " ranks, rank 0 of " +
                             std::to_string(header.size));
  return true;
}

void SharedExchange::take_place() {
  Place& own = place(rank_);
  std::int32_t nobody = 0;
  if (!own.owner.compare_exchange_strong(nobody, getpid()))
    throw std::runtime_error("shared memory /dev/shm" + segment_.name() + ": two processes are " +
                             name_of(rank_) + " and this one, " + std::to_string(getpid()));
  own.process = this_process();
  own.presence.store(Presence::attached, std::memory_order_release);
}

// Rank 0 removes the name when all have attached, and says so.
void SharedExchange::await_all(const SharedExchangeSetup& setup) {
  guarded([&] {
    for (Patience patience(setup.start_limit);; std::this_thread::sleep_for(milliseconds(1))) {
      std::string missing;
      for (int r = 0; r < size_; ++r) {
        const Presence presence = place(r).presence.load(std::memory_order_acquire);
        if (presence == Presence::absent)
          missing += (missing.empty() ? "rank " : ", ") + std::to_string(r);
        else if (place(r).process.pid_space != place(rank_).process.pid_space)
          throw std::runtime_error(
              name_of(r) + " and " + name_of(rank_) +
              " are in different containers and do not see each other's processes: start "
              "the ranks of a host in one container");
        else if (presence == Presence::failed)
          throw RankLost(place(r).lost, place(r).reason);
        else if (state_of(place(r).process) == ProcessState::ended && !header().complete)
          throw RankLost(r, name_of(r) + " has ended before all ranks were there");
      }
      if (missing.empty() && rank_ == 0) {
        segment_.remove_name();
        header().complete.store(1, std::memory_order_release);
      }
      if (header().complete.load(std::memory_order_acquire)) return;
      if (patience.ended())
        throw std::runtime_error("shared memory /dev/shm" + segment_.name() + ": within " +
                                 seconds(setup.start_limit) + " there is no " +
                                 (missing.empty() ? "answer from rank 0" : missing));
    }
  });
  segment_.remove_name();
}

SharedExchange::~SharedExchange() {
  Presence expected = Presence::attached;
  place(rank_).presence.compare_exchange_strong(expected, Presence::left);
  wake_all(place(rank_).round);
}

// ------------------------------------------------------------------------------------------------- rounds
// Runs a call. An error is stored for the calls after it, and for the ranks that wait for this one.
void SharedExchange::guarded(const std::function<void()>& work) {
  if (failure_) std::rethrow_exception(failure_);
  const auto tell = [&](int lost, const std::string& reason) {
    failure_ = std::current_exception();
    Place& own = place(rank_);
    own.lost = lost;
    own.reason[reason.copy(own.reason, sizeof own.reason - 1)] = 0;
    own.presence.store(Presence::failed, std::memory_order_release);
    wake_all(own.round);
  };
  try {
    work();
  } catch (const RankLost& error) {
    tell(error.rank, error.what());
    throw;
  } catch (const std::exception& error) {
    tell(rank_, name_of(rank_) + " has failed: " + error.what());
    throw;
  }
}

void SharedExchange::run(const Call& call, std::size_t chunk, const Fill& fill, const Drain& drain) {
  ++calls_;
  std::size_t first = 0;
  std::uint64_t longest = 0;
  do {
    ++round_;
    if (const std::size_t count = part(call.bytes, first, chunk)) fill(first, count);
    next_round(call);
    if (first == 0) longest = compare(call);
    // Each begins with its neighbour, so that all read from others.
    for (int step = 1; step < size_; ++step) {
      const int from = (rank_ + step) % size_;
      if (const std::size_t count = part(bytes_[static_cast<std::size_t>(from)], first, chunk))
        drain(from, first, count);
    }
    first += chunk;
  } while (first < longest);
  completed_ = calls_;
}

// Posts this round and waits until all others have.
void SharedExchange::next_round(const Call& call) {
  Place& own = place(rank_);
  own.call[round_ % 2] = call;
  own.round.store(round_, std::memory_order_release);
  wake_all(own.round);
  Patience patience(time_limit_);
  for (int r = 0; r < size_; ++r)
    while (!has_posted(r)) {
      wait_for_change(place(r).round, round_ - 1, look_interval);
      if (has_posted(r)) break;
      look_after_missing(call);
      if (patience.ended() && !has_posted(r)) give_up_waiting(call);
    }
}

// A rank may be one round ahead. The numbers begin again at 0 after 2^32.
bool SharedExchange::has_posted(int rank) const {
  return static_cast<std::int32_t>(place(rank).round.load(std::memory_order_acquire) - round_) >= 0;
}

// Takes the bytes of all ranks, and returns the most.
std::uint64_t SharedExchange::compare(const Call& call) {
  std::uint64_t longest = 0;
  for (int r = 0; r < size_; ++r) {
    const Call& other = place(r).call[round_ % 2];
    const bool same_bytes = other.bytes == call.bytes || call.kind == Kind::gather;
    if (other.kind != call.kind || other.root != call.root || !same_bytes)
      throw std::logic_error("call " + std::to_string(calls_) + " of the communicator: " + name_of(rank_) +
                             " makes " + text_of(call) + ", " + name_of(r) + " makes " + text_of(other) +
                             "; all ranks must make the same calls in the same order");
    bytes_[static_cast<std::size_t>(r)] = other.bytes;
    longest = std::max(longest, other.bytes);
  }
  return longest;
}

// ----------------------------------------------------------------------------------------- lost ranks

// A rank may have posted and ended since it was found missing: so that is read again.
void SharedExchange::look_after_missing(const Call& call) {
  for (int r = 0; r < size_; ++r) {
    if (has_posted(r)) continue;
    const Presence presence = place(r).presence.load(std::memory_order_acquire);
    const bool ended = state_of(place(r).process) == ProcessState::ended;
    if (has_posted(r)) continue;
    if (presence == Presence::failed) throw RankLost(place(r).lost, place(r).reason);
    if (presence == Presence::left)
      throw RankLost(r, name_of(r) + " has left and takes no part in " + place_of(call));
    if (ended)
      throw RankLost(r, name_of(r) + " has ended; " + name_of(rank_) + " waited for it in " + place_of(call));
  }
}

void SharedExchange::give_up_waiting(const Call& call) {
  int lost = -1;
  std::string missing;
  for (int r = size_ - 1; r >= 0; --r) {
    if (has_posted(r)) continue;
    lost = r;
    const bool stopped = state_of(place(r).process) == ProcessState::stopped;
    missing =
        name_of(r) + (stopped ? " is stopped" : " has not come") + (missing.empty() ? "" : ", ") + missing;
  }
  throw RankLost(lost, missing + "; " + name_of(rank_) + " waited for " + seconds(time_limit_) + " in " +
                           place_of(call));
}

std::string SharedExchange::name_of(int rank) const {
  return "rank " + std::to_string(rank) + " (process " + std::to_string(place(rank).owner.load()) + ")";
}

std::string SharedExchange::place_of(const Call& call) const {
  return "call " + std::to_string(calls_) + ", " + text_of(call);
}

std::string SharedExchange::text_of(const Call& call) {
  const std::string bytes = " of " + std::to_string(call.bytes) + " bytes";
  switch (call.kind) {
    case Kind::all_to_all: return "all_to_all" + bytes + " for each rank";
    case Kind::all_gather: return "all_gather" + bytes + " of each rank";
    case Kind::broadcast: return "broadcast" + bytes + " from rank " + std::to_string(call.root);
    case Kind::gather: return "gather";
    case Kind::barrier: return "barrier";
  }
  return "an unknown call";
}

// ------------------------------------------------------------------------------------------------- calls
void SharedExchange::all_to_all(Device& device, void* receive, const void* send, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(receive);
  const auto* from = static_cast<const std::byte*>(send);
  guarded([&] {
    check_all_to_all(receive, send, bytes, size_);
    const auto others = static_cast<std::size_t>(std::max(1, size_ - 1)), own = rank_ * bytes;
    if (to != from) device.copy(to + own, from + own, bytes);
    const std::size_t chunk = header().slot_bytes / others / line * line;
    const auto fill = [&](std::size_t first, std::size_t count) {
      for (int r = 0; r < size_; ++r)
        if (r != rank_)
          device.download(slot(rank_) + part_index(rank_, r) * chunk, from + r * bytes + first, count);
    };
    run({Kind::all_to_all, 0, bytes}, chunk, fill, [&](int r, std::size_t first, std::size_t count) {
      device.upload(to + r * bytes + first, slot(r) + part_index(r, rank_) * chunk, count);
    });
  });
}

void SharedExchange::all_gather(Device& device, void* receive, const void* send, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(receive);
  const auto* from = static_cast<const std::byte*>(send);
  guarded([&] {
    check_all_gather(receive, send, bytes, rank_, size_);
    if (to + rank_ * bytes != from) device.copy(to + rank_ * bytes, from, bytes);
    const auto fill = [&](std::size_t first, std::size_t count) {
      device.download(slot(rank_), from + first, count);
    };
    run({Kind::all_gather, 0, bytes}, header().slot_bytes, fill,
        [&](int r, std::size_t first, std::size_t count) {
          device.upload(to + r * bytes + first, slot(r), count);
        });
  });
}

void SharedExchange::broadcast(Device& device, void* memory, std::size_t bytes, int root) {
  auto* place = static_cast<std::byte*>(memory);
  guarded([&] {
    check_broadcast(memory, bytes, root, size_);
    const auto fill = [&](std::size_t first, std::size_t count) {
      if (rank_ == root) device.download(slot(rank_), place + first, count);
    };
    run({Kind::broadcast, root, bytes}, header().slot_bytes, fill,
        [&](int r, std::size_t first, std::size_t count) {
          if (r == root) device.upload(place + first, slot(r), count);
        });
  });
}

std::vector<std::vector<std::byte>> SharedExchange::gather(std::span<const std::byte> own) {
  std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(size_));
  all[static_cast<std::size_t>(rank_)].assign(own.begin(), own.end());
  guarded([&] {
    const auto fill = [&](std::size_t first, std::size_t count) {
      std::memcpy(slot(rank_), own.data() + first, count);
    };
    run({Kind::gather, 0, own.size()}, header().slot_bytes, fill, [&](int r, std::size_t, std::size_t count) {
      auto& bytes = all[static_cast<std::size_t>(r)];
      bytes.insert(bytes.end(), slot(r), slot(r) + count);
    });
  });
  return all;
}

void SharedExchange::barrier() {
  guarded([&] {
    run(
        {Kind::barrier, 0, 0}, header().slot_bytes, [](auto...) {}, [](auto...) {});
  });
}

}  // namespace goat
