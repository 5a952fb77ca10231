// What ranks have posted (RankGroup::post), between the thread that completes the parts and the one that
// collects them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "train/ranks/rank_group.h"

namespace goat {

class Posts {
 public:
  // The number of this rank's next part.
  std::uint64_t next_number() {
    const std::lock_guard lock(mutex_);
    if (posted_ - collected_ >= most_ahead)
      throw std::logic_error("ranks: " + std::to_string(most_ahead) + " posts have not been collected");
    return posted_++;
  }

  void complete(std::vector<std::string> parts) {  // of all ranks, the next ones
    const std::lock_guard lock(mutex_);
    complete_.push_back(std::move(parts));
    changed_.notify_all();
  }

  // No more parts will be complete: the run has ended or failed.
  void close(std::optional<Failure> failure) {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    failure_ = std::move(failure);
    changed_.notify_all();
  }

  bool collectable() const {
    const std::lock_guard lock(mutex_);
    return !complete_.empty();
  }

  std::vector<std::string> collect() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !complete_.empty(); });
    if (complete_.empty()) {
      if (failure_) throw RunFailed(*failure_);
      throw std::logic_error("ranks: nothing more is posted, the run has ended");
    }
    std::vector<std::string> parts = std::move(complete_.front());
    complete_.pop_front();
    ++collected_;
    return parts;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<std::string>> complete_;
  std::uint64_t posted_ = 0, collected_ = 0;
  bool closed_ = false;
  std::optional<Failure> failure_;
};

}  // namespace goat
