// DivergenceWatch: notices that the loss stays high although every number is finite.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace goat {

// Looks at the losses of the latest `window` steps. A run diverges if each of them is more than `margin` nats
// above ln V, the loss of a uniform guess, or above the lowest window mean so far.
class DivergenceWatch {
 public:
  static constexpr std::size_t window = 10;
  static constexpr double margin = 1;  // nats

  // From a checkpoint: `best` is the run's lowest window mean so far, or NaN if there is none; `latest` are
  // the losses of the latest steps, the oldest first.
  DivergenceWatch(std::int64_t vocab, double best, std::vector<double> latest = {});

  // Adds a loss. Returns a message if the run begins to diverge with this loss. There is no second message
  // until the run has recovered.
  std::optional<std::string> add(double loss);
  double best() const { return best_; }
  const std::vector<double>& latest() const { return latest_; }  // at most `window`

 private:
  // Whether every loss of a full window is more than `margin` above this.
  bool is_above(double loss) const;
  bool diverges() const { return is_above(uniform_) || is_above(best_); }

  double uniform_, best_;
  std::vector<double> latest_;
};

}  // namespace goat
