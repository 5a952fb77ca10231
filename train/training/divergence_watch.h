// DivergenceWatch: notices that the loss stays high although every number is finite.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace goat {

// Looks at the losses of the latest `window` steps. A run diverges if each of them is more than `margin` nats
// above ln V, the loss of a uniform guess, or above the lowest window mean so far.
class DivergenceWatch {
 public:
  static constexpr std::size_t window = 10;
  static constexpr double margin = 1;  // nats

  // `best` is the run's lowest window mean so far, or NaN if there is none.
  DivergenceWatch(std::int64_t vocab, double best);

  // Adds a loss. Returns a message if the run begins to diverge with this loss. There is no second message
  // until the run has recovered.
  std::optional<std::string> add(double loss);
  double best() const { return best_; }

 private:
  double uniform_, best_;
  std::deque<double> latest_;
  bool diverges_ = false;
};

}  // namespace goat
