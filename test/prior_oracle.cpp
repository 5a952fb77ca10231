#include "test/prior_oracle.h"

#include <cmath>
#include <cstddef>

namespace goat::test {

double Positions::coordinate(std::int64_t t, std::int64_t r, std::int64_t modes) const {
  const std::int64_t axis = axes == 2 && r >= modes - modes / 2 ? 1 : 0;
  return values[static_cast<std::size_t>(t * axes + axis)];
}

Positions Positions::sequence(std::int64_t first, std::int64_t rows) {
  Positions positions;
  for (std::int64_t t = 0; t < rows; ++t) positions.values.push_back(static_cast<double>(first + t));
  return positions;
}

Positions Positions::grid_with_class_token(std::int64_t rows, std::int64_t width) {
  Positions positions{{-1, -1}, 2};
  for (std::int64_t t = 0; t + 1 < rows; ++t) {
    const std::int64_t y = t / width, x = t % width;
    positions.values.push_back(static_cast<double>(y));
    positions.values.push_back(static_cast<double>(x));
  }
  return positions;
}

std::array<double, 2> fourier_pair(double frequency, double position) {
  if (position < 0) return {0, 0};
  return {std::cos(frequency * position), std::sin(frequency * position)};
}

double HeadPrior::amplitude() const {
  double sum = 0;
  for (std::size_t r = 0; r < alpha.size(); ++r) sum += std::hypot(alpha[r], beta[r]);
  return sum;
}

double relative_prior(const HeadPrior& head, const Positions& positions, std::int64_t i, std::int64_t j) {
  double sum = 0;
  for (std::int64_t r = 0; r < head.modes(); ++r) {
    const double query = positions.coordinate(i, r, head.modes()),
                 key = positions.coordinate(j, r, head.modes());
    if (query < 0 || key < 0) continue;
    const auto mode = static_cast<std::size_t>(r);
    const double angle = head.frequency[mode] * (query - key);
    sum += head.alpha[mode] * std::cos(angle) + head.beta[mode] * std::sin(angle);
  }
  return sum;
}

std::vector<double> prior_matrix(const HeadPrior& head, const Positions& positions) {
  std::vector<double> matrix;
  for (std::int64_t i = 0; i < positions.rows(); ++i)
    for (std::int64_t j = 0; j < positions.rows(); ++j) {
      const double bias = head.key_bias.empty() ? 0 : head.key_bias[static_cast<std::size_t>(j)];
      matrix.push_back(relative_prior(head, positions, i, j) + bias +
                       head.slope * static_cast<double>(j - i));
    }
  return matrix;
}

std::vector<double> query_vector(const HeadPrior& head, const Positions& positions, std::int64_t t) {
  std::vector<double> vector;
  for (std::size_t r = 0; r < head.alpha.size(); ++r) {
    const auto [cosine, sine] =
        fourier_pair(head.frequency[r], positions.coordinate(t, static_cast<std::int64_t>(r), head.modes()));
    vector.push_back(head.alpha[r] * cosine + head.beta[r] * sine);
    vector.push_back(head.alpha[r] * sine - head.beta[r] * cosine);
  }
  return vector;
}

std::vector<double> key_vector(const HeadPrior& head, const Positions& positions, std::int64_t t) {
  std::vector<double> vector;
  for (std::size_t r = 0; r < head.alpha.size(); ++r) {
    const auto pair =
        fourier_pair(head.frequency[r], positions.coordinate(t, static_cast<std::int64_t>(r), head.modes()));
    vector.insert(vector.end(), pair.begin(), pair.end());
  }
  return vector;
}

std::vector<double> sink_features(const std::vector<double>& frequency, const Positions& positions,
                                  double train_length) {
  const auto modes = static_cast<std::int64_t>(frequency.size());
  std::vector<double> features;
  for (std::int64_t t = 0; t < positions.rows(); ++t) {
    for (const int which : {0, 1})
      for (std::int64_t m = 0; m < modes; ++m)
        features.push_back(
            fourier_pair(frequency[static_cast<std::size_t>(m)], positions.coordinate(t, m, modes))[which]);
    features.push_back(static_cast<double>(t) / train_length);
    features.push_back(std::log(1 + static_cast<double>(t)) / std::log(1 + train_length));
  }
  return features;
}

std::vector<double> SinkMlp::hidden(const std::vector<double>& features) const {
  const std::size_t units = b1.size(), width = w1.size() / units, rows = features.size() / width;
  std::vector<double> out;
  for (std::size_t t = 0; t < rows; ++t)
    for (std::size_t m = 0; m < units; ++m) {
      double sum = b1[m];
      for (std::size_t f = 0; f < width; ++f) sum += w1[m * width + f] * features[t * width + f];
      out.push_back(sum);
    }
  return out;
}

std::vector<double> SinkMlp::key_bias(const std::vector<double>& features) const {
  const std::vector<double> x = hidden(features);
  const std::size_t units = b1.size(), rows = x.size() / units;
  std::vector<double> out;
  for (std::size_t h = 0; h < bump.size(); ++h)
    for (std::size_t t = 0; t < rows; ++t) {
      double sum = t == 0 ? bump[h] : 0;
      for (std::size_t m = 0; m < units; ++m)
        sum += w2[h * units + m] * x[t * units + m] / (1 + std::exp(-x[t * units + m]));
      out.push_back(sum);
    }
  return out;
}

SinkMlp SinkMlp::absolute() const {
  return {test::absolute(w1), test::absolute(b1), test::absolute(w2), test::absolute(bump)};
}

std::vector<double> numerical_gradient(std::vector<double>& parameters, double step,
                                       const std::function<double()>& loss) {
  std::vector<double> gradient;
  for (double& parameter : parameters) {
    const double value = parameter;
    parameter = value + step;
    const double above = loss();
    parameter = value - step;
    const double below = loss();
    parameter = value;
    gradient.push_back((above - below) / (2 * step));
  }
  return gradient;
}

}  // namespace goat::test
