// The thread that holds a rank's connections: heartbeats, gathers, posts and the end of a run that has
// failed.
#pragma once

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "train/ranks/judge.h"
#include "train/ranks/posts.h"
#include "train/ranks/rank_group.h"
#include "train/ranks/rendezvous.h"

namespace goat {

class Watchdog {
 public:
  // `io` is stopped and holds the meeting's connections.
  Watchdog(std::unique_ptr<asio::io_context> io, Meeting meeting, int rank, const RankGroupOptions& options,
           std::function<Beat()> beat, Posts& posts);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // These wait; they throw RunFailed if the run fails meanwhile and on_failure returned.
  std::vector<std::string> gather(std::string_view what, std::string_view bytes,
                                  std::chrono::milliseconds limit, bool last);
  // After `patience`, in which the run may fail for another reason.
  void fail(const Failure& failure, std::chrono::milliseconds patience = {});
  void watch(std::function<std::string()> trouble);
  void post(Post own);  // does not wait

 private:
  using Clock = std::chrono::steady_clock;

  void attach(std::size_t index);
  void receive(int from, Kind kind, const std::string& body);
  void lost(int from, const std::string& violation);
  void tick();
  void check(Clock::time_point now);

  // Gathers, at rank 0.
  void contribute(int from, Contribution contribution);
  void deliver(Collection collection);
  void check_gather(Clock::time_point now);

  // At rank 0: those that the others wait for. None if nobody waits.
  struct Absent {
    std::string from;
    std::vector<int> ranks;
  };
  Absent absent_from_gather() const;
  Absent absent_from_posts() const;
  Failure with_absent(Failure stuck) const;

  // Posts, the first at rank 0.
  void add_post(int from, Post post);
  void deliver_posts(Collection collection);

  void end(const Failure& failure);  // the run has failed
  bool settled() const;
  void settle(int patience);  // ends what is to end, at the latest after so many glances
  void close();
  std::string ask_for_trouble() const;
  std::string own_name() const;

  std::unique_ptr<asio::io_context> io_;
  Meeting meeting_;
  const int rank_;
  const RankGroupOptions& options_;
  std::function<Beat()> beat_;
  Posts& posts_;
  std::function<std::string()> trouble_;
  std::optional<Clock::time_point> troubled_since_;
  Judge judge_;
  asio::steady_timer tick_, end_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;

  // Of the thread.
  std::vector<std::optional<Contribution>> contributions_;  // by rank, of the gather that is going on
  std::vector<std::deque<std::string>> waiting_posts_;      // by rank, at rank 0
  std::uint64_t complete_posts_ = 0;
  Clock::time_point gather_began_;
  std::uint64_t last_gather_ = 0;
  bool finishing_ = false;                       // the last gather is complete: connections may end
  bool closing_ = false, acknowledged_ = false;  // acknowledged: rank 0 has told of the failure
  std::optional<Failure> failure_;

  // Shared with the callers.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Collection> collected_;
  bool failed_ = false;  // failure_ is set and on_failure has returned
  std::uint64_t gathers_ = 0;

  std::thread thread_;
};

}  // namespace goat
