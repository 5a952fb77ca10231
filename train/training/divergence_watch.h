// DivergenceWatch: notices a loss that stays high although every number is finite.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace goat {

// Looks at the losses of the latest `window` steps: a run diverges where all of them are more than `margin`
// nats above the loss of a uniform guess, ln V, or above the lowest mean of a window so far.
class DivergenceWatch {
 public:
  static constexpr std::size_t window = 10;
  static constexpr double margin = 1;  // nats

  // `best` is the lowest mean of a window of the run so far; not a number where there is none.
  DivergenceWatch(std::int64_t vocab, double best);

  // A sentence where the run begins to diverge with this loss; once, until it has recovered.
  std::optional<std::string> add(double loss);
  double best() const { return best_; }

 private:
  double uniform_, best_;
  std::deque<double> latest_;
  bool diverges_ = false;
};

}  // namespace goat
