#include "test/attention_prior.h"

#include "kernels/prior_setup.h"
#include "test/attention_operands.h"

namespace goat::test {

namespace {
using Index = std::int64_t;
constexpr double unit = PriorLanesForward::key_bias_unit;  // P

void write_query_lanes(double* lanes, const HeadPrior& prior, double scale, Index position, DType dtype) {
  for (const double a : query_vector(prior, Positions::sequence(position, 1), 0))
    *lanes++ = rounded_to(dtype, a / scale);
  lanes[0] = lanes[1] = unit;
}
void write_key_lanes(double* lanes, const HeadPrior& prior, double scale, Index position, DType dtype) {
  for (const double c : key_vector(prior, Positions::sequence(position, 1), 0))
    *lanes++ = rounded_to(dtype, c);
  const double bias = prior.key_bias[position] / (scale * unit);
  lanes[0] = rounded_to(dtype, bias);
  lanes[1] = rounded_to(dtype, bias - lanes[0]);
}
}  // namespace

HeadPrior random_prior(Rng& rng, Index modes, Index length, double bias_scale) {
  std::normal_distribution<double> normal;
  HeadPrior prior;
  prior.frequency = fourier_frequencies(modes, 10000);
  for (Index r = 0; r < modes; ++r) prior.alpha.push_back(normal(rng)), prior.beta.push_back(normal(rng));
  for (Index j = 0; j < length; ++j) prior.key_bias.push_back(bias_scale * normal(rng));
  return prior;
}

AttentionProblem with_bias(AttentionProblem problem, const std::vector<HeadPrior>& priors,
                           Index content_dim) {
  const auto clear_lanes = [&](std::vector<double>& values) {
    for (std::size_t n = 0; n < values.size(); ++n)
      if (static_cast<Index>(n) % problem.head_dim >= content_dim) values[n] = 0;
  };
  clear_lanes(problem.q);
  clear_lanes(problem.k);
  problem.bias.clear();
  const Positions positions = Positions::sequence(0, problem.t_k);
  for (const HeadPrior& prior : priors)
    for (Index i = 0; i < problem.t_q; ++i)
      for (Index j = 0; j < problem.t_k; ++j)
        problem.bias.push_back(relative_prior(prior, positions, problem.position(i), j) + prior.key_bias[j] +
                               prior.slope * static_cast<double>(j));
  return problem;
}

AttentionProblem with_lanes(AttentionProblem problem, std::vector<HeadPrior> priors, Index content_dim,
                            DType dtype) {
  for (HeadPrior& prior : priors)
    for (Index j = 0; j < problem.t_k; ++j) prior.key_bias[j] += prior.slope * static_cast<double>(j);
  const auto lanes = [&](std::vector<double>& values, Index row, Index h) {
    return values.data() + (row * problem.heads + h) * problem.head_dim + content_dim;
  };
  for (Index b = 0; b < problem.batch; ++b)
    for (Index h = 0; h < problem.heads; ++h) {
      for (Index i = 0; i < problem.t_q; ++i)
        write_query_lanes(lanes(problem.q, b * problem.t_q + i, h), priors[h], problem.scale,
                          problem.position(i), dtype);
      for (Index j = 0; j < problem.t_k; ++j)
        write_key_lanes(lanes(problem.k, b * problem.t_k + j, h), priors[h], problem.scale, j, dtype);
    }
  return problem;
}

std::vector<double> attention_matrix(Device& device, AttentionProblem problem, DType dtype) {
  problem.v.assign(problem.t_k * problem.head_dim, 0);
  for (Index j = 0; j < problem.t_k; ++j) problem.v[j * problem.head_dim + j] = 1;
  DeviceAttention on_device(device, problem, problem.head_dim, 0, dtype);
  on_device.forward();
  return values_of(device, on_device.out.tensor().slice(3, 0, problem.t_k));
}

double logit_bound(const HeadPrior& prior) { return 0.003 + 0.008 * prior.amplitude(); }

}  // namespace goat::test
