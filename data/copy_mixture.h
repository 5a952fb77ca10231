// CopyMixture: the built-in task, which needs no download. The optimal strategy is to attend to the first
// token or to the token before the last.
#pragma once

#include "data/token_source.h"

namespace goat {

struct CopyMixtureOptions {
  std::int64_t vocab = 64;    // V
  std::int64_t seq_len = 64;  // T
  double p_first = 0.25;
  double p_prev = 0.25;
  std::uint64_t seed = 0;
  bool validation = false;  // draws other sequences than training
};

// A sequence has T + 1 tokens. Its inputs are x_0 .. x_{T-1}, its targets x_1 .. x_T. x_0 is uniform over
// the vocabulary, and
//   x_{i+1} = x_0                       with probability p_first
//           = x_{i-1}  (x_0 at i = 0)   with probability p_prev
//           = uniform over the V ids    otherwise.
//
// Token x_k of sequence `index` uses one Philox block,
//   (w_0, w_1, w_2, w_3) = philox(seed, RandomStream::copy_mixture, item, k),
// where item is `index`, with its top bit set for validation:
//   w_0 / 2^32 < p_first:           x_0
//   w_0 / 2^32 < p_first + p_prev:  x_{k-2}
//   otherwise, and always at k = 0: the uniform token floor(w_1 / 2^32 * V).
// All of this is computed in double, so that another implementation gets the same tokens.
class CopyMixture final : public TokenSource {
 public:
  // Throws std::invalid_argument unless V >= 2, T >= 1, p_first, p_prev >= 0 and p_first + p_prev <= 1.
  explicit CopyMixture(const CopyMixtureOptions& options);

  std::string description() const override;
  std::uint64_t sequences() const override { return endless; }
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override;
  std::optional<double> bayes_optimal_loss() const override;

 private:
  CopyMixtureOptions options_;
};

}  // namespace goat
