#include "train/training/divergence_watch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace goat {

DivergenceWatch::DivergenceWatch(std::int64_t vocab, double best)
    : uniform_(std::log(static_cast<double>(vocab))), best_(best) {}

std::optional<std::string> DivergenceWatch::add(double loss) {
  if (!std::isfinite(loss)) return std::nullopt;  // the update is skipped and reported
  latest_.push_back(loss);
  if (latest_.size() > window) latest_.pop_front();
  if (latest_.size() < window) return std::nullopt;

  const double lowest = *std::ranges::min_element(latest_), before = best_;
  best_ =
      std::fmin(best_, std::accumulate(latest_.begin(), latest_.end(), 0.0) / static_cast<double>(window));
  const bool above_uniform = lowest > uniform_ + margin, above_best = lowest > before + margin;
  const bool began = (above_uniform || above_best) && !diverges_;
  diverges_ = above_uniform || above_best;
  if (!began) return std::nullopt;
  char text[256];
  std::snprintf(text, sizeof text,
                "the loss has been above %.4g for %zu steps, where %s: the run diverges; lower train.lr, set "
                "train.clip, or train.spike_z to skip spikes",
                lowest, window,
                above_uniform ? ("a uniform guess has ln V = " + std::to_string(uniform_)).c_str()
                              : ("it had come down to " + std::to_string(before)).c_str());
  return text;
}

}  // namespace goat
