#include "train/training/divergence_watch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

namespace goat {

DivergenceWatch::DivergenceWatch(std::int64_t vocab, double best, std::vector<double> latest)
    : uniform_(std::log(static_cast<double>(vocab))), best_(best), latest_(std::move(latest)) {
  if (latest_.size() > window) latest_.erase(latest_.begin(), latest_.end() - window);
}

bool DivergenceWatch::is_above(double loss) const {
  return latest_.size() == window && *std::ranges::min_element(latest_) > loss + margin;
}

std::optional<std::string> DivergenceWatch::add(double loss) {
  if (!std::isfinite(loss)) return std::nullopt;  // the update is skipped and reported
  const bool diverged = diverges();
  latest_.push_back(loss);
  if (latest_.size() > window) latest_.erase(latest_.begin());
  if (latest_.size() < window) return std::nullopt;
  best_ =
      std::fmin(best_, std::accumulate(latest_.begin(), latest_.end(), 0.0) / static_cast<double>(window));
  if (diverged || !diverges()) return std::nullopt;
  char text[256];
  std::snprintf(text, sizeof text,
                "the loss has been above %.4g for %zu steps, where %s: the run diverges; lower train.lr, set "
                "train.clip, or train.spike_z to skip spikes",
                *std::ranges::min_element(latest_), window,
                is_above(uniform_) ? ("a uniform guess has ln V = " + std::to_string(uniform_)).c_str()
                                   : ("it had come down to " + std::to_string(best_)).c_str());
  return text;
}

}  // namespace goat
