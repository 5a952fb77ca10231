// The ranks of a run: how they meet, exchange small things on the host, and how all of them end when one
// fails.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "train/ranks/judge.h"
#include "train/ranks/launch.h"
#include "train/ranks/peer.h"
#include "train/ranks/wire.h"

namespace goat {

struct RankGroupOptions {
  std::chrono::milliseconds start_timeout{300'000};
  std::chrono::milliseconds announce_interval{10'000};  // whom the start waits for
  std::chrono::milliseconds hello_timeout{10'000};      // rank 0, for a connection that says nothing
  std::chrono::milliseconds refusal_time{3'000};  // rank 0, after a refusal: to tell those who come later
  RankLimits limits;
  std::function<void(const std::string& line)> say;  // where nothing is given: a line on stderr
  // Called on the watchdog's thread once the run has failed and every rank that can be reached knows it.
  // Where nothing is given: _exit with the failure's code, without destructors, which might wait for other
  // ranks.
  std::function<void(const Failure&)> on_failure;
  std::chrono::milliseconds verdict_time{5'000};  // watch(), lost(): to find the true cause
  Peer self = own_peer();                         // its rank is the launch's
};

// A wait for the other ranks that ended because the run has failed (only where on_failure returned).
struct RunFailed : std::runtime_error {
  explicit RunFailed(const Failure& why) : std::runtime_error(why.reason), failure(why) {}
  Failure failure;
};

// A part of a run, for the messages and for how long it may take without progress.
struct Phase {
  const char* name;
  bool may_take_long = false;  // saving, compiling: long_progress_timeout counts
};

class Posts;
class Watchdog;

// One a process. Its calls come from one thread, apart from post() and collect(), and from at(), enter(),
// enqueued(), finished(), fail() and lost(), which any thread may call at any time. A watchdog thread holds
// the connections, and sends and hears the heartbeats; rank 0 judges. The failure of a rank ends all ranks.
class RankGroup {
 public:
  // Meets the other ranks. Throws RanksError where they do not come or do not belong together. `fields` must
  // be the same in all ranks (or differ, by their rules), such as the commit and the config's text.
  RankGroup(const Launch& launch, std::vector<Field> fields, RankGroupOptions options = {});
  // Without finish() the connections just end, which the others take for a failure.
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  static constexpr std::chrono::hours no_limit{24};  // of a gather: only the phase's limits count

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  const std::vector<Peer>& peers() const { return peers_; }
  const RankGroupOptions& options() const { return options_; }

  // Every rank's bytes, by rank. All ranks must call with the same `what`, in the same order; a rank that
  // does not come within `limit` ends the run, as does one that lets all wait for longer than the phase
  // allows (RankLimits). At most most_gathered bytes together.
  std::vector<std::string> gather(std::string_view what, std::string_view bytes,
                                  std::chrono::milliseconds limit = no_limit);

  // A vote: empty if no rank objects, else the objections with their ranks. The same text on all ranks.
  std::string agree(std::string_view what, std::string_view objection);

  // A second exchange beside gather(), in which nobody waits for a rank that is behind: the parts 0, 1, 2,
  // ... of this rank are posted, and the parts 0, 1, 2, ... of all ranks, by rank, collected. All ranks post
  // the same number of parts. collect() waits, without a time limit of its own. One thread may post and
  // another one collect. Parts that nobody collects are lost at the end.
  //
  // post() throws std::length_error beyond most_posted bytes, and std::logic_error if this rank has not
  // collected most_ahead parts. collect() throws std::logic_error after finish(), when none are left.
  void post(std::string_view bytes);
  std::vector<std::string> collect();
  bool collectable() const;  // whether collect() would return at once

  // What the heartbeats tell: the step, the phase (which must outlive this), the last collective that was
  // enqueued and the last that has finished.
  void at(std::int64_t step) { step_ = step; }
  void enter(const Phase& phase) { phase_ = &phase; }
  void enqueued(std::uint64_t collective) { enqueued_ = collective; }
  void finished(std::uint64_t collective) { finished_ = collective; }

  // Called at each heartbeat, on the watchdog's thread. A text that is not empty ends the run with it, unless
  // the watchdog finds the true cause within verdict_time. For errors that only show when asked for.
  void watch(std::function<std::string()> trouble);

  // This rank cannot go on: tells all, which end with `code`. Returns only where on_failure does.
  void fail(const std::string& reason, int code);
  // This rank cannot go on because rank `lost` does not (RankLost). The watchdog has verdict_time to find the
  // cause by itself, such as that rank's own message; else the run fails with exit code 1 for `what`, which
  // is told of rank `lost`, or of this one if `lost` is no rank. Returns only where on_failure does.
  void lost(int lost, const std::string& what);

  // The orderly end: waits for all ranks, after which connections may close.
  void finish();

 private:
  Beat beat() const;

  int rank_;
  std::vector<Peer> peers_;
  RankGroupOptions options_;
  std::atomic<std::int64_t> step_{0};
  std::atomic<const Phase*> phase_;
  std::atomic<std::uint64_t> enqueued_{0}, finished_{0};
  std::unique_ptr<Posts> posts_;
  std::unique_ptr<Watchdog> watchdog_;  // none for one rank
};

}  // namespace goat
