#include "train/ranks/watchdog.h"

#include <pthread.h>

#include <algorithm>
#include <asio/post.hpp>
#include <csignal>
#include <utility>

namespace goat {

namespace {

constexpr std::chrono::milliseconds glance{10};
constexpr int glances_after_failure = 50;  // half a second for the others to hear of it
constexpr int glances_at_the_end = 500;
constexpr std::size_t longest_gather_name = 200;

}  // namespace

Watchdog::Watchdog(std::unique_ptr<asio::io_context> io, Meeting meeting, int rank,
                   const RankGroupOptions& options, std::function<Beat()> beat, Posts& posts)
    : io_(std::move(io)),
      meeting_(std::move(meeting)),
      rank_(rank),
      options_(options),
      beat_(std::move(beat)),
      posts_(posts),
      judge_(meeting_.peers, options.limits, Clock::now()),
      tick_(*io_),
      end_(*io_),
      work_(io_->get_executor()),
      contributions_(meeting_.peers.size()),
      waiting_posts_(meeting_.peers.size()) {
  for (std::size_t index = 0; index < meeting_.connections.size(); ++index) attach(index);
  io_->restart();
  tick();
  sigset_t all, before;  // signals are for the other threads
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { io_->run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::~Watchdog() {
  asio::post(*io_, [this] { close(); });
  thread_.join();
}

// Lets go of the connections as soon as nothing is lost by it.
void Watchdog::close() {
  closing_ = true;
  tick_.cancel();
  settle(finishing_ ? glances_at_the_end : glances_after_failure);
}

void Watchdog::attach(std::size_t index) {
  const auto& connection = meeting_.connections[index];
  if (!connection) return;
  const auto from = static_cast<int>(index);
  std::vector<Kind> accepted{Kind::beat, Kind::failure};
  if (rank_ == 0)
    accepted.insert(accepted.end(), {Kind::contribution, Kind::post});
  else
    accepted.insert(accepted.end(), {Kind::collection, Kind::posts});
  connection->handle({std::move(accepted),
                      [this, from](Kind kind, const std::string& body) { receive(from, kind, body); },
                      [this, from](const std::string& violation) { lost(from, violation); }});
}

void Watchdog::receive(int from, Kind kind, const std::string& body) {
  if (kind == Kind::beat) {
    judge_.report(from, decode_beat(body), Clock::now());
  } else if (kind == Kind::contribution) {
    contribute(from, decode_contribution(body));
  } else if (kind == Kind::collection) {
    deliver(decode_collection(body));
  } else if (kind == Kind::post) {
    add_post(from, decode_post(body));
  } else if (kind == Kind::posts) {
    deliver_posts(decode_collection(body));
  } else {
    const Failure failure = decode_failure(body);
    if (rank_ == 0 && (failure.rank < 0 || failure.rank >= std::ssize(meeting_.peers)))
      throw WireError("a failure of no rank");
    acknowledged_ = true;
    end(failure);
  }
}

void Watchdog::lost(int from, const std::string& violation) {
  if (finishing_ || failure_) return;
  const std::string name = name_of(meeting_.peers[static_cast<std::size_t>(from)]);
  end({from, violation.empty() ? name + " has ended: its connection is closed (killed, crashed or exited)"
                               : name + " sent " + violation});
}

void Watchdog::tick() {
  if (failure_ || finishing_) return;
  const auto now = Clock::now();
  const Beat own = beat_();
  judge_.report(rank_, own, now);
  const std::string text = frame(Kind::beat, encode(own));
  for (std::size_t from = 0; from < meeting_.connections.size(); ++from) {
    const auto& connection = meeting_.connections[from];
    if (!connection) continue;
    if (connection->sent()) connection->send(text);  // what is stuck needs no more of them
    judge_.heard(static_cast<int>(from), connection->heard());
  }
  check(now);
  tick_.expires_after(options_.limits.beat_interval);
  tick_.async_wait([this](const std::error_code& error) {
    if (!error) tick();
  });
}

void Watchdog::check(Clock::time_point now) {
  if (judge_.tick(now)) {
    gather_began_ = now;
    return;
  }
  if (const std::string trouble = ask_for_trouble(); trouble.empty())
    troubled_since_.reset();
  else if (now - troubled_since_.value_or(now) >= options_.verdict_time)
    return end({rank_, own_name() + ": " + trouble});
  else if (!troubled_since_)
    troubled_since_ = now;
  for (std::size_t from = 0; from < meeting_.connections.size(); ++from)
    if (meeting_.connections[from])
      if (const auto silent = judge_.silent(static_cast<int>(from), now)) return end(*silent);
  if (rank_ != 0) return;
  check_gather(now);
  if (const auto stuck = judge_.stuck(now)) end(with_absent(*stuck));
}

std::string Watchdog::ask_for_trouble() const {
  try {
    return trouble_ ? trouble_() : "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string Watchdog::own_name() const { return name_of(meeting_.peers[static_cast<std::size_t>(rank_)]); }

std::vector<std::string> Watchdog::gather(std::string_view what, std::string_view bytes,
                                          std::chrono::milliseconds limit, bool last) {
  if (bytes.size() > most_gathered / meeting_.peers.size())
    throw std::length_error("ranks: gather of " + std::to_string(bytes.size()) + " bytes a rank, at most " +
                            std::to_string(most_gathered / meeting_.peers.size()) + " are possible");
  Contribution own{++gathers_, std::string(what.substr(0, longest_gather_name)),
                   static_cast<std::uint32_t>(std::clamp<std::int64_t>(limit.count(), 1, UINT32_MAX)),
                   std::string(bytes)};
  asio::post(*io_, [this, last, own = std::move(own)]() mutable {
    if (failure_) return;
    if (last) last_gather_ = own.number;
    if (rank_ == 0) return contribute(0, std::move(own));
    meeting_.connections[0]->send(frame(Kind::contribution, encode(own)));
  });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return failed_ || collected_; });
  if (!collected_) throw RunFailed(*failure_);
  return std::exchange(collected_, std::nullopt)->parts;
}

void Watchdog::contribute(int from, Contribution contribution) {
  if (failure_) return;
  std::optional<Contribution>& place = contributions_[static_cast<std::size_t>(from)];
  if (place) throw WireError("two parts of one gather");
  if (contribution.bytes.size() > most_gathered / meeting_.peers.size())
    throw WireError("a part that is too long");
  const auto first =
      std::find_if(contributions_.begin(), contributions_.end(), [](const auto& part) { return part; });
  if (first == contributions_.end()) {
    gather_began_ = Clock::now();
  } else if ((*first)->number != contribution.number || (*first)->what != contribution.what) {
    const auto& other = meeting_.peers[static_cast<std::size_t>(first - contributions_.begin())];
    return end({from, name_of(other) + " is at '" + (*first)->what + "' (exchange " +
                          std::to_string((*first)->number) + "), " +
                          name_of(meeting_.peers[static_cast<std::size_t>(from)]) + " at '" +
                          contribution.what + "' (exchange " + std::to_string(contribution.number) +
                          "): they do not run the same"});
  }
  place = std::move(contribution);
  if (!std::all_of(contributions_.begin(), contributions_.end(), [](const auto& part) { return part; }))
    return;
  Collection all{contributions_[0]->number, {}};
  for (auto& part : contributions_) all.parts.push_back(std::move(std::exchange(part, std::nullopt)->bytes));
  const std::string text = frame(Kind::collection, encode(all));
  for (const auto& connection : meeting_.connections)
    if (connection) connection->send(text);
  deliver(std::move(all));
}

void Watchdog::deliver(Collection collection) {
  if (collection.parts.size() != meeting_.peers.size()) throw WireError("parts of another number of ranks");
  if (collection.number == last_gather_) {
    finishing_ = true;
    if (rank_ != 0) meeting_.connections[0]->send_last();
    posts_.close(std::nullopt);  // what was posted before has come before
  }
  const std::lock_guard lock(mutex_);
  collected_ = std::move(collection);
  changed_.notify_all();
}

// A rank that does not come.
void Watchdog::check_gather(Clock::time_point now) {
  const auto [what, missing] = absent_from_gather();
  std::chrono::milliseconds limit{0};
  for (const auto& part : contributions_)
    if (part) limit = std::max(limit, std::chrono::milliseconds(part->limit_ms));
  if (missing.empty() || failure_ || now - gather_began_ <= limit) return;
  end({missing.size() == 1 ? missing.front() : -1, list_of(missing) + " did not come to '" + what +
                                                       "' within " + std::to_string(limit.count()) +
                                                       " ms: " + judge_.places()});
}

Watchdog::Absent Watchdog::absent_from_gather() const {
  Absent absent;
  for (std::size_t rank = 0; rank < contributions_.size(); ++rank)
    if (const auto& part = contributions_[rank])
      absent.from = part->what;
    else
      absent.ranks.push_back(static_cast<int>(rank));
  if (absent.ranks.size() == contributions_.size()) absent.ranks.clear();
  return absent;
}

Watchdog::Absent Watchdog::absent_from_posts() const {
  Absent absent{"report " + std::to_string(complete_posts_) + " on its data", {}};
  for (std::size_t rank = 0; rank < waiting_posts_.size(); ++rank)
    if (waiting_posts_[rank].empty()) absent.ranks.push_back(static_cast<int>(rank));
  if (absent.ranks.size() == waiting_posts_.size()) absent.ranks.clear();
  return absent;
}

// Steps and collectives do not tell which rank hangs in a save or in its data; what the others wait for does.
// A rank that waits in a gather does not hang itself, whatever its collectives are.
Failure Watchdog::with_absent(Failure stuck) const {
  const Absent gather = absent_from_gather(), posts = absent_from_posts();
  const auto have = [](const Absent& absent) { return absent.ranks.size() == 1 ? " has" : " have"; };
  if (!gather.ranks.empty()) {
    stuck.reason +=
        "; " + list_of(gather.ranks) + have(gather) + " not come to '" + gather.from + "' of the others";
    if (gather.ranks.size() == 1) stuck.rank = gather.ranks.front();
  } else if (stuck.rank < 0 && !posts.ranks.empty()) {
    stuck.reason += "; " + list_of(posts.ranks) + have(posts) + " not given " + posts.from;
    if (posts.ranks.size() == 1) stuck.rank = posts.ranks.front();
  }
  return stuck;
}

void Watchdog::post(Post own) {
  asio::post(*io_, [this, own = std::move(own)]() mutable {
    if (failure_) return;
    if (rank_ == 0) return add_post(0, std::move(own));
    meeting_.connections[0]->send(frame(Kind::post, encode(own)));
  });
}

void Watchdog::add_post(int from, Post post) {
  if (failure_) return;
  std::deque<std::string>& waiting = waiting_posts_[static_cast<std::size_t>(from)];
  if (post.number != complete_posts_ + waiting.size()) throw WireError("a post out of order");
  if (waiting.size() == most_ahead) throw WireError("more posts than are allowed");
  waiting.push_back(std::move(post.bytes));
  if (std::any_of(waiting_posts_.begin(), waiting_posts_.end(),
                  [](const auto& rank) { return rank.empty(); }))
    return;
  Collection all{complete_posts_, {}};
  for (auto& rank : waiting_posts_) {
    all.parts.push_back(std::move(rank.front()));
    rank.pop_front();
  }
  const std::string text = frame(Kind::posts, encode(all));
  for (const auto& connection : meeting_.connections)
    if (connection) connection->send(text);
  deliver_posts(std::move(all));
}

void Watchdog::deliver_posts(Collection collection) {
  if (collection.parts.size() != meeting_.peers.size()) throw WireError("posts of another number of ranks");
  if (collection.number != complete_posts_) throw WireError("posts out of order");
  ++complete_posts_;
  posts_.complete(std::move(collection.parts));
}

void Watchdog::watch(std::function<std::string()> trouble) {
  asio::post(*io_, [this, trouble = std::move(trouble)] { trouble_ = trouble; });
}

void Watchdog::fail(const Failure& failure, std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, patience, [this] { return failed_; })) return;
  asio::post(*io_, [this, failure] { end(failure); });
  changed_.wait(lock, [this] { return failed_; });
}

// Rank 0 tells all; another rank tells rank 0, unless it was told by it.
void Watchdog::end(const Failure& failure) {
  if (failure_) return;
  failure_ = failure;
  tick_.cancel();
  const std::string text = frame(Kind::failure, encode(failure));
  for (const auto& connection : meeting_.connections)
    if (connection && (rank_ == 0 || !acknowledged_)) connection->send(text);
  options_.say(own_name() + " of " + std::to_string(meeting_.peers.size()) + " ends: " + failure.reason);
  settle(glances_after_failure);
}

// Whether nothing that matters can be lost when this process ends: the kernel drops what is under way when a
// connection is closed that holds bytes not yet read. So rank 0 waits until the others have left, and a rank
// that tells of a failure until rank 0 has heard it.
bool Watchdog::settled() const {
  const bool await_end = rank_ == 0 && (failure_ || finishing_);
  const bool await_answer = rank_ != 0 && failure_ && !acknowledged_;
  return std::all_of(meeting_.connections.begin(), meeting_.connections.end(), [&](const auto& connection) {
    return !connection || connection->over() || (connection->sent() && !await_end && !await_answer);
  });
}

void Watchdog::settle(int patience) {
  if (!settled() && patience > 0) {
    end_.expires_after(glance);
    end_.async_wait([this, patience](const std::error_code& error) {
      if (!error) settle(patience - 1);
    });
    return;
  }
  if (failure_ && !failed_) {
    for (const auto& connection : meeting_.connections)
      if (connection) connection->send_last();
    options_.on_failure(*failure_);
    posts_.close(failure_);
    const std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_all();
  }
  if (!closing_) return;
  for (const auto& connection : meeting_.connections)
    if (connection) connection->close();
  io_->stop();
}

}  // namespace goat
