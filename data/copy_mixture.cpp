#include "data/copy_mixture.h"

#include <cmath>
#include <sstream>

#include "kernels/philox.h"

namespace goat {
namespace {

// -p log p: the term of one outcome in an entropy, in nats.
double entropy_term(double p) { return p > 0 ? -p * std::log(p) : 0; }

}  // namespace

CopyMixture::CopyMixture(const CopyMixtureOptions& options) : options_(options) {
  const bool valid = options.vocab >= 2 && options.vocab <= std::numeric_limits<std::int32_t>::max() &&
                     options.seq_len >= 1 && options.p_first >= 0 && options.p_prev >= 0 &&
                     options.p_first + options.p_prev <= 1;
  if (!valid) {
    throw std::invalid_argument(
        "copy mixture: vocab >= 2, seq_len >= 1, p_first >= 0, p_prev >= 0 and p_first + p_prev <= 1 must "
        "hold; found " +
        description());
  }
}

std::string CopyMixture::description() const {
  std::ostringstream text;
  text << "copy mixture, " << (options_.validation ? "validation" : "training") << ": vocab "
       << options_.vocab << ", seq_len " << options_.seq_len << ", p_first " << options_.p_first
       << ", p_prev " << options_.p_prev << ", seed " << options_.seed;
  return text.str();
}

void CopyMixture::read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
  const auto length = static_cast<std::size_t>(options_.seq_len);
  require_length("CopyMixture", options_.seq_len, inputs, targets);
  const std::uint64_t item = index | (options_.validation ? std::uint64_t{1} << 63 : 0);
  const auto draw = [&](std::size_t k) {
    return philox(options_.seed, RandomStream::copy_mixture, item, static_cast<std::uint32_t>(k));
  };
  const auto uniform_token = [&](const PhiloxBlock& words) {
    return static_cast<std::int32_t>(uniform(words[1]) * static_cast<double>(options_.vocab));
  };
  inputs[0] = uniform_token(draw(0));
  for (std::size_t i = 0; i < length; ++i) {
    const PhiloxBlock words = draw(i + 1);
    const double decision = uniform(words[0]);
    if (decision < options_.p_first) {
      targets[i] = inputs[0];
    } else if (decision < options_.p_first + options_.p_prev) {
      targets[i] = inputs[i == 0 ? 0 : i - 1];
    } else {
      targets[i] = uniform_token(words);
    }
    if (i + 1 < length) inputs[i + 1] = targets[i];
  }
}

// Given the tokens up to x_i, with u = (1 - p_first - p_prev) / V, the next token is x_0 with probability
// p_first + u, x_{i-1} with probability p_prev + u, and any other token with probability u. If x_{i-1} = x_0
// (always so at i = 0 and i = 1), that token has probability p_first + p_prev + u. The optimal predictor
// knows these probabilities. Therefore its expected loss at i is the mean of the two cases' entropies,
// weighted by c_{i-1} and 1 - c_{i-1}, where c_k = P(x_k = x_0):
//   c_0 = 1,   c_1 = p_first + p_prev + u,   c_k = p_first + u + p_prev c_{k-2}.
std::optional<double> CopyMixture::bayes_optimal_loss() const {
  const double first = options_.p_first;
  const double prev = options_.p_prev;
  const auto vocab = static_cast<double>(options_.vocab);
  const double noise = (1 - first - prev) / vocab;  // u
  const double same = entropy_term(first + prev + noise) + (vocab - 1) * entropy_term(noise);
  const double different =
      entropy_term(first + noise) + entropy_term(prev + noise) + (vocab - 2) * entropy_term(noise);

  double sum = 0;
  double coincidence = 1;       // P(x_{i-1} = x_0); 1 at i = 0
  double next_coincidence = 1;  // P(x_i = x_0)
  for (std::int64_t i = 0; i < options_.seq_len; ++i) {
    sum += coincidence * same + (1 - coincidence) * different;
    const double after = first + noise + prev * coincidence;  // P(x_{i+1} = x_0)
    coincidence = next_coincidence;
    next_coincidence = after;
  }
  return sum / static_cast<double>(options_.seq_len);
}

}  // namespace goat
