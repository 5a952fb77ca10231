#include "train/ranks/rank_group.h"

#include <unistd.h>

#include <utility>

#include "train/ranks/posts.h"
#include "train/ranks/ranks_error.h"
#include "train/ranks/rendezvous.h"
#include "train/ranks/watchdog.h"

namespace goat {

namespace {

constexpr Phase starting{"start", true};

void write_line(const std::string& line) {
  const std::string text = line + "\n";  // one call: lines of several ranks do not mix
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

RankGroupOptions completed(RankGroupOptions options, int rank) {
  if (!options.say) options.say = write_line;
  if (!options.on_failure) options.on_failure = [](const Failure& failure) { ::_exit(failure.code); };
  if (options.limits.heartbeat_timeout < 3 * options.limits.beat_interval)
    throw RanksError("heartbeat_timeout must be at least 3 heartbeats long", 2);
  options.self.rank = rank;
  return options;
}

}  // namespace

RankGroup::RankGroup(const Launch& launch, std::vector<Field> fields, RankGroupOptions options)
    : rank_(launch.rank),
      options_(completed(std::move(options), launch.rank)),
      phase_(&starting),
      posts_(std::make_unique<Posts>()) {
  peers_ = {options_.self};
  if (launch.size == 1) return;
  auto io = std::make_unique<asio::io_context>(1);
  RendezvousOptions rendezvous;
  rendezvous.start_timeout = options_.start_timeout;
  rendezvous.announce_interval = options_.announce_interval;
  rendezvous.hello_timeout = options_.hello_timeout;
  rendezvous.refusal_time = options_.refusal_time;
  rendezvous.say = options_.say;
  const Hello hello{launch.job, launch.size, options_.self, std::move(fields)};
  Meeting meeting =
      rank_ == 0 ? await_ranks(*io, launch, hello, rendezvous) : join_ranks(*io, launch, hello, rendezvous);
  peers_ = meeting.peers;
  watchdog_ = std::make_unique<Watchdog>(
      std::move(io), std::move(meeting), rank_, options_, [this] { return beat(); }, *posts_);
}

RankGroup::~RankGroup() = default;

Beat RankGroup::beat() const {
  const Phase& phase = *phase_.load();
  return {step_, phase.name, phase.may_take_long, enqueued_, finished_};
}

std::vector<std::string> RankGroup::gather(std::string_view what, std::string_view bytes,
                                           std::chrono::milliseconds limit) {
  if (!watchdog_) return {std::string(bytes)};
  return watchdog_->gather(what, bytes, limit, false);
}

std::string RankGroup::agree(std::string_view what, std::string_view objection) {
  const std::vector<std::string> objections = gather(what, objection);
  std::string text;
  for (std::size_t rank = 0; rank < objections.size(); ++rank)
    if (!objections[rank].empty())
      text += (text.empty() ? "" : "; ") + name_of(peers_[rank]) + ": " + objections[rank];
  return text;
}

void RankGroup::post(std::string_view bytes) {
  if (bytes.size() > most_posted)
    throw std::length_error("ranks: a post of " + std::to_string(bytes.size()) + " bytes, at most " +
                            std::to_string(most_posted) + " are possible");
  Post own{posts_->next_number(), std::string(bytes)};
  if (watchdog_) return watchdog_->post(std::move(own));
  posts_->complete({std::move(own.bytes)});
}

std::vector<std::string> RankGroup::collect() { return posts_->collect(); }

bool RankGroup::collectable() const { return posts_->collectable(); }

void RankGroup::watch(std::function<std::string()> trouble) {
  if (watchdog_) watchdog_->watch(std::move(trouble));
}

void RankGroup::fail(const std::string& reason, int code) {
  const Failure failure{rank_, name_of(peers_[static_cast<std::size_t>(rank_)]) + ": " + reason,
                        code >= 1 && code <= 255 ? code : 1};
  if (watchdog_) return watchdog_->fail(failure);
  options_.say(failure.reason);
  options_.on_failure(failure);
  posts_->close(failure);
}

void RankGroup::lost(int lost, const std::string& what) {
  if (!watchdog_) return fail(what, 1);
  const int told = lost < 0 || lost >= size() ? rank_ : lost;
  const Failure failure{told, name_of(peers_[static_cast<std::size_t>(told)]) + ": " + what};
  watchdog_->fail(failure, options_.verdict_time);
}

void RankGroup::finish() {
  if (watchdog_)
    watchdog_->gather("the end of the run", "", no_limit, true);
  else
    posts_->close(std::nullopt);
}

}  // namespace goat
