// Streams, events and recorded graphs of the simulated GPU. A stream is a queue; Options::streams says when
// its entries run.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "kernels/memory_access.h"
#include "kernels/simt/execution.h"
#include "kernels/simt/options.h"
#include "kernels/simt/stream_order.h"

namespace goat::on_simt {

// An error of an entry. The stream drops the entries behind it, and so does every stream that waits for one
// of them. The next call on the stream, or a wait for an event behind the entry, throws the error.
struct StreamFailure {
  std::exception_ptr error;
  bool thrown = false;
};

// One call of record(). It is complete when its entry has run or was dropped.
struct EventRecord {
  StreamQueue* stream = nullptr;       // valid until the record is complete
  Clock behind;                        // what the record is behind
  std::atomic<bool> complete = false;  // set last: any host thread may read it
  std::chrono::steady_clock::time_point time{};
  std::shared_ptr<StreamFailure> failure;  // of the entry because of which it was dropped
};

struct RecordedGraph {
  std::vector<std::function<void()>> work;  // of all its streams, in the order of the calls
  std::vector<MemoryAccess> accesses;
};

// Work that is being recorded: of the stream that captures, and of those that have joined it.
struct Recording {
  int origin = 0;  // number of the stream that captures
  StreamOrder order;
  std::map<int, std::uint64_t> latest_work;  // by stream, the time of its latest work, or of its joining
  RecordedGraph graph;
};

// A call of record() in a recording.
struct JoinPoint {
  std::weak_ptr<Recording> recording;
  Clock behind;
};

// What the latest record() was: one of the two, or neither if there was none.
struct EventState {
  std::shared_ptr<EventRecord> latest;
  std::shared_ptr<JoinPoint> recorded;
};

// One entry has one of the three.
struct StreamEntry {
  std::function<void()> work;
  std::shared_ptr<EventRecord> recorded;
  std::shared_ptr<EventRecord> awaited;
};

class StreamQueue {
  friend class StreamQueues;
  int number_ = 0;  // in the order in which this process creates streams, from 1
  bool urgent_ = false;
  std::deque<StreamEntry> pending_;
  std::shared_ptr<StreamFailure> failure_;  // not yet thrown
  std::shared_ptr<Recording> recording_;    // null unless work is recorded
  std::uint64_t uses_ = 0;                  // number of calls that have enqueued something
};

// All streams of this process. Every function may be called by several host threads.
class StreamQueues {
 public:
  static StreamQueues& instance();

  StreamQueue* create(bool urgent);
  void destroy(StreamQueue* stream);  // runs its entries first, and prints a failure

  bool runs_at_once(StreamQueue& stream);
  void append(StreamQueue& stream, StreamEntry entry);

  void finish(StreamQueue& stream);  // runs what is pending; throws the stream's failure
  void finish_all();                 // for all streams; keeps their failures
  void finish(EventRecord& record);  // runs what the record needs; throws its failure

  // Whether note() has anything to do. While this process has one stream, only recorded work is noted.
  bool watches(const StreamQueue& stream);
  // StreamOrder::note for work that the caller is about to enqueue.
  void note(StreamQueue& stream, std::span<const MemoryAccess> accesses);
  void forget(const void* memory, std::size_t bytes);

  void record(EventState& event, StreamQueue& stream);
  void await(StreamQueue& stream, const EventState& event);

  // The number of calls that have enqueued something; nullopt for a stream that does not exist.
  std::optional<std::uint64_t> uses(const StreamQueue* stream);

  bool is_recording(const StreamQueue& stream);
  void begin_recording(StreamQueue& stream);
  std::unique_ptr<RecordedGraph> end_recording(StreamQueue& stream);
  void abandon_recording(StreamQueue& stream);

 private:
  bool watches_now(const StreamQueue& stream) const;
  void throw_failure(StreamQueue& stream);
  void require_not_recording(const StreamQueue& stream, const char* call);
  std::shared_ptr<Recording> leave_recording(StreamQueue& stream);
  void push(StreamQueue& stream, StreamEntry entry);
  void run_pending(StreamQueue& stream);
  void run_until(const EventRecord& record);
  void run_next(StreamQueue& stream);
  void run_oldest(StreamQueue& stream);
  void drop(StreamQueue& stream, std::exception_ptr error);
  void run_some();
  void run_any();
  void run_urgent();
  static bool is_ready(const StreamQueue& stream);
  std::uint64_t random();

  std::mutex mutex_;
  std::vector<std::unique_ptr<StreamQueue>> streams_;
  int latest_number_ = 0;
  StreamOrder order_;  // of work that is not recorded
  std::uint64_t seed_ = 0;
  std::mt19937_64 generator_{0};
};

// Whether work that is enqueued now runs in the call that enqueues it. Then all earlier work of the stream
// has run. Throws the failure of earlier work.
inline bool runs_at_once(Stream stream) { return !stream || StreamQueues::instance().runs_at_once(*stream); }

// Enqueues work that does not run at once. `work` owns all that it needs. It may run several times, because
// the stream may be recording.
inline void append(Stream stream, std::function<void()> work) {
  StreamQueues::instance().append(*stream, {.work = std::move(work), .recorded = {}, .awaited = {}});
}

// The work that the caller is about to enqueue accesses device or page-locked memory. Throws
// std::runtime_error if another stream's access of it may come before or after (Options::stream_races): then
// the caller must not enqueue it. `what` is for the message, for example "the target of copy".
void note_access(Stream stream, const void* memory, std::size_t bytes, bool writes, const char* what);

template <class Work>
void enqueue_work(Stream stream, Work&& work) {
  if (runs_at_once(stream))
    work();
  else
    append(stream, std::forward<Work>(work));
}

}  // namespace goat::on_simt
