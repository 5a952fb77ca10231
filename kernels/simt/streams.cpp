#include "kernels/simt/streams.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "kernels/cuda/runtime.cuh"

namespace goat::on_simt {

namespace {
void print(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    std::fprintf(stderr, "%s (found when the stream was destroyed, because nothing had waited for it)\n",
                 known.what());
  }
}
}  // namespace

// Never destroyed, because devices of static duration may outlive all other objects.
StreamQueues& StreamQueues::instance() {
  static StreamQueues& queues = *new StreamQueues;
  return queues;
}

StreamQueue* StreamQueues::create(bool urgent) {
  const std::lock_guard lock(mutex_);
  StreamQueue* const stream = streams_.emplace_back(std::make_unique<StreamQueue>()).get();
  order_.add(stream->number_ = ++latest_number_);
  stream->urgent_ = urgent;
  return stream;
}

void StreamQueues::destroy(StreamQueue* stream) {
  const std::lock_guard lock(mutex_);
  run_pending(*stream);
  if (stream->failure_ && !stream->failure_->thrown) print(stream->failure_->error);
  order_.remove(stream->number_);
  std::erase_if(streams_, [&](const auto& one) { return one.get() == stream; });
}

bool StreamQueues::runs_at_once(StreamQueue& stream) {
  const std::lock_guard lock(mutex_);
  throw_failure(stream);
  ++stream.uses_;
  if (stream.recording_ || options().streams != Streams::at_once) return false;
  run_pending(stream);
  throw_failure(stream);
  return true;
}

void StreamQueues::append(StreamQueue& stream, StreamEntry entry) {
  const std::lock_guard lock(mutex_);
  if (Recording* const recording = stream.recording_.get()) {
    recording->graph.work.push_back(std::move(entry.work));
    recording->latest_work[stream.number_] = recording->order.time(stream.number_);
  } else {
    push(stream, std::move(entry));
  }
}

void StreamQueues::finish(StreamQueue& stream) {
  const std::lock_guard lock(mutex_);
  require_not_recording(stream, "a wait for the stream");
  order_.host_follows(order_.record(stream.number_));
  run_pending(stream);
  throw_failure(stream);
}

void StreamQueues::finish_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& stream : streams_) run_pending(*stream);
}

void StreamQueues::finish(EventRecord& record) {
  const std::lock_guard lock(mutex_);
  order_.host_follows(record.behind);
  run_until(record);
  if (!record.failure) return;
  record.failure->thrown = true;
  std::rethrow_exception(record.failure->error);
}

bool StreamQueues::watches_now(const StreamQueue& stream) const {
  return options().stream_races && (streams_.size() > 1 || stream.recording_);
}

bool StreamQueues::watches(const StreamQueue& stream) {
  const std::lock_guard lock(mutex_);
  return watches_now(stream);
}

void StreamQueues::note(StreamQueue& stream, std::span<const MemoryAccess> accesses) {
  const std::lock_guard lock(mutex_);
  if (!watches_now(stream)) return;
  if (stream.recording_) return stream.recording_->order.note(stream.number_, accesses);
  order_.forget_what_all_are_behind();
  order_.note(stream.number_, accesses);
}

void StreamQueues::forget(const void* memory, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  order_.forget(memory, bytes);
}

void StreamQueues::record(EventState& event, StreamQueue& stream) {
  const std::lock_guard lock(mutex_);
  if (stream.recording_) {
    const Clock behind = stream.recording_->order.record(stream.number_);
    event = {.latest = {}, .recorded = std::make_shared<JoinPoint>(JoinPoint{stream.recording_, behind})};
    return;
  }
  const auto latest = std::make_shared<EventRecord>();
  latest->stream = &stream;
  latest->behind = order_.record(stream.number_);
  push(stream, {.work = {}, .recorded = latest, .awaited = {}});
  event = {.latest = latest, .recorded = {}};
}

void StreamQueues::await(StreamQueue& stream, const EventState& event) {
  const std::lock_guard lock(mutex_);
  const auto recording = event.recorded ? event.recorded->recording.lock() : nullptr;
  if (event.recorded && !recording) throw std::logic_error(runtime::event_of_ended_recording);
  if (stream.recording_ && stream.recording_ != recording)
    throw std::logic_error(runtime::event_outside_recording);
  if (recording) {
    if (!std::exchange(stream.recording_, recording)) {
      recording->order.add(stream.number_);
      recording->latest_work[stream.number_] = recording->order.time(stream.number_);
    }
    recording->order.follow(stream.number_, event.recorded->behind);
  } else if (event.latest) {
    order_.follow(stream.number_, event.latest->behind);
    push(stream, {.work = {}, .recorded = {}, .awaited = event.latest});
  }
}

std::optional<std::uint64_t> StreamQueues::uses(const StreamQueue* stream) {
  const std::lock_guard lock(mutex_);
  for (const auto& known : streams_)
    if (known.get() == stream) return stream->uses_;
  return std::nullopt;
}

bool StreamQueues::is_recording(const StreamQueue& stream) {
  const std::lock_guard lock(mutex_);
  return stream.recording_ != nullptr;
}

void StreamQueues::begin_recording(StreamQueue& stream) {
  const std::lock_guard lock(mutex_);
  require_not_recording(stream, "another recording");
  throw_failure(stream);
  stream.recording_ = std::make_shared<Recording>();
  stream.recording_->origin = stream.number_;
  stream.recording_->order.add(stream.number_);
}

std::unique_ptr<RecordedGraph> StreamQueues::end_recording(StreamQueue& stream) {
  const std::lock_guard lock(mutex_);
  const int number = stream.number_;
  if (!stream.recording_ || stream.recording_->origin != number)
    throw std::logic_error("simt: a recording is to end on a stream where none has begun");
  const auto recording = leave_recording(stream);
  for (const auto& [other, time] : recording->latest_work)
    if (other != number && !recording->order.is_behind(number, other, time))
      throw std::logic_error(runtime::work_not_joined);
  recording->graph.accesses = recording->order.accesses();
  return std::make_unique<RecordedGraph>(std::move(recording->graph));
}

void StreamQueues::abandon_recording(StreamQueue& stream) {
  const std::lock_guard lock(mutex_);
  leave_recording(stream);
}

// All streams of the recording can be used as before.
std::shared_ptr<Recording> StreamQueues::leave_recording(StreamQueue& stream) {
  const auto recording = stream.recording_;
  for (const auto& one : streams_)
    if (one->recording_ == recording) one->recording_.reset();
  return recording;
}

void StreamQueues::throw_failure(StreamQueue& stream) {
  const std::shared_ptr<StreamFailure> failure = std::exchange(stream.failure_, nullptr);
  if (!failure || std::exchange(failure->thrown, true)) return;
  std::rethrow_exception(failure->error);
}

void StreamQueues::require_not_recording(const StreamQueue& stream, const char* call) {
  if (stream.recording_)
    throw std::logic_error(std::string("simt: ") + call + " is not possible while the stream records work");
}

void StreamQueues::push(StreamQueue& stream, StreamEntry entry) {
  throw_failure(stream);
  ++stream.uses_;
  stream.pending_.push_back(std::move(entry));
  switch (options().streams) {
    case Streams::at_once: run_pending(stream); break;
    case Streams::late: break;
    case Streams::random: run_some(); break;
    case Streams::urgent_first: run_urgent(); break;
  }
  throw_failure(stream);
}

void StreamQueues::run_pending(StreamQueue& stream) {
  while (!stream.pending_.empty()) run_next(stream);
}

void StreamQueues::run_until(const EventRecord& record) {
  while (!record.complete) run_next(*record.stream);
}

// A step on the way to the end of the stream's oldest entry: what it awaits, or the entry. An entry can only
// await a record that was made before it, so that this ends.
void StreamQueues::run_next(StreamQueue& stream) {
  if (options().streams == Streams::random) return run_any();
  if (const auto awaited = stream.pending_.front().awaited; awaited && !awaited->complete)
    return run_until(*awaited);
  run_oldest(stream);
  if (options().streams == Streams::urgent_first) run_urgent();
}

void StreamQueues::run_oldest(StreamQueue& stream) {
  const StreamEntry entry = std::move(stream.pending_.front());
  stream.pending_.pop_front();
  try {
    if (entry.awaited && entry.awaited->failure) std::rethrow_exception(entry.awaited->failure->error);
    if (entry.work) entry.work();
  } catch (...) {
    return drop(stream, std::current_exception());
  }
  if (!entry.recorded) return;
  entry.recorded->time = std::chrono::steady_clock::now();
  entry.recorded->complete = true;
}

void StreamQueues::drop(StreamQueue& stream, std::exception_ptr error) {
  stream.failure_ = std::make_shared<StreamFailure>(StreamFailure{std::move(error)});
  for (const StreamEntry& entry : std::exchange(stream.pending_, {}))
    if (entry.recorded) {
      entry.recorded->failure = stream.failure_;
      entry.recorded->complete = true;
    }
}

// Runs entries of random streams until a coin says stop.
void StreamQueues::run_some() {
  const auto pending = [](const auto& stream) { return !stream->pending_.empty(); };
  while (random() % 2 == 0 && std::any_of(streams_.begin(), streams_.end(), pending)) run_any();
}

// Runs the oldest entry of a random stream that does not wait for another one. There is one if any entry is
// pending: that which was enqueued first.
void StreamQueues::run_any() {
  std::vector<StreamQueue*> ready;
  for (const auto& stream : streams_)
    if (is_ready(*stream)) ready.push_back(stream.get());
  run_oldest(*ready[random() % ready.size()]);
}

// Runs what urgent streams can run by themselves.
void StreamQueues::run_urgent() {
  const auto ready = [](const auto& stream) { return stream->urgent_ && is_ready(*stream); };
  for (;;) {
    const auto found = std::find_if(streams_.begin(), streams_.end(), ready);
    if (found == streams_.end()) return;
    run_oldest(**found);
  }
}

// Whether the stream's oldest entry can run before any other stream's.
bool StreamQueues::is_ready(const StreamQueue& stream) {
  if (stream.pending_.empty()) return false;
  const auto& awaited = stream.pending_.front().awaited;
  return !awaited || awaited->complete;
}

// The sequence begins again when Options::seed changes.
std::uint64_t StreamQueues::random() {
  if (const std::uint64_t seed = options().seed; seed != seed_) generator_.seed(seed_ = seed);
  return generator_();
}

void note_access(Stream stream, const void* memory, std::size_t bytes, bool writes, const char* what) {
  StreamQueues& queues = StreamQueues::instance();
  if (!stream || !queues.watches(*stream)) return;
  const MemoryAccess access{memory, bytes, writes, what};
  queues.note(*stream, {&access, 1});
}

}  // namespace goat::on_simt
