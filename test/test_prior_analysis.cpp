// What `analyze` computes: the prior's curves, rows, kinds and spectrum, the readings of attention, and the
// probe that takes them from a model.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/open/open_device.h"
#include "kernels/prior_setup.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/prior_oracle.h"
#include "train/commands/attention_probe.h"
#include "train/commands/prior_analysis.h"
#include "train/model/model_parameters.h"

using namespace goat;
using goat::test::fresh_seed;
using goat::test::Rng;

namespace {
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

std::vector<double> normal(Rng& rng, std::int64_t count, double scale = 1) {
  std::normal_distribution<double> distribution(0, scale);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = distribution(rng);
  return values;
}

PriorWeights random_weights(Rng& rng, std::int64_t heads, std::int64_t modes, std::int64_t absolute_modes) {
  constexpr std::int64_t hidden = 7;
  return {.heads = heads,
          .alpha = normal(rng, heads * modes),
          .beta = normal(rng, heads * modes),
          .frequency = fourier_frequencies(modes, 10000),
          .slope = normal(rng, heads, 0.1),
          .bump = normal(rng, heads, 3),
          .w1 = normal(rng, hidden * (2 * absolute_modes + 2)),
          .b1 = normal(rng, hidden),
          .w2 = normal(rng, heads * hidden),
          .absolute_frequency = fourier_frequencies(absolute_modes, 500),
          .train_length = 20};
}

// The curves of a single head, given.
struct Curves {
  std::vector<double> sink, relative;
  LogPrior view() const { return {sink, relative}; }
};

Curves random_curves(Rng& rng, std::int64_t length, double scale) {
  return {normal(rng, length, scale), normal(rng, length, scale)};
}

// softmax over j <= i of K_i plus the content [i + 1].
std::vector<double> naive_row(const LogPrior& prior, std::int64_t i, const std::vector<float>& content = {}) {
  std::vector<double> p;
  for (std::int64_t j = 0; j <= i; ++j)
    p.push_back(
        std::exp(prior.at(i, j) +
                 (content.empty() ? 0.0 : static_cast<double>(content[static_cast<std::size_t>(j)]))));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= sum;
  return p;
}

PriorStatistics statistics_of(const LogPrior& prior) { return prior_statistics(prior, prior_rows(prior)); }

// Curves that put the mass where `kind` says.
Curves typical_curves(PriorKind kind) {
  constexpr std::size_t length = 64;
  Curves curves{std::vector<double>(length), std::vector<double>(length)};
  if (kind == PriorKind::sink) curves.sink[0] = 9;
  if (kind == PriorKind::previous_token) curves.relative[1] = 9;
  for (std::size_t d = 0; d < length; ++d) {
    if (kind == PriorKind::local) curves.relative[d] = -0.5 * static_cast<double>(d);
    if (kind == PriorKind::long_range) curves.relative[d] = 0.1 * static_cast<double>(d);
  }
  return curves;
}
}  // namespace

TEST_CASE("prior analysis: curves match the naive prior at and beyond the training length") {
  const std::uint64_t seed = fresh_seed();
  INFO("seed " << seed);
  Rng rng(seed);
  constexpr std::int64_t heads = 3, modes = 4, length = 33;
  PriorCurves curves(2, heads, length);
  const PriorWeights weights = random_weights(rng, heads, modes, 2);
  curves.evaluate(1, weights);

  const auto positions = goat::test::Positions::sequence(0, length);
  const goat::test::SinkMlp mlp{weights.w1, weights.b1, weights.w2, std::vector<double>(heads)};
  const auto g = mlp.key_bias(goat::test::sink_features(weights.absolute_frequency, positions, 20));
  for (std::int64_t h = 0; h < heads; ++h) {
    const auto at = [&](const std::vector<double>& values) {
      return std::vector(values.begin() + h * modes, values.begin() + (h + 1) * modes);
    };
    const goat::test::HeadPrior head{at(weights.alpha), at(weights.beta), weights.frequency, 0, {}};
    const LogPrior prior = curves.log_prior(1, h);
    for (std::int64_t j = 0; j < length; ++j) {
      const std::size_t flat = static_cast<std::size_t>((heads + h) * length + j),
                        hj = static_cast<std::size_t>(h * length + j);
      const double slope = weights.slope[static_cast<std::size_t>(h)] * static_cast<double>(j);
      const double bump = j == 0 ? weights.bump[static_cast<std::size_t>(h)] : 0;
      CHECK(curves.slope()[flat] == slope);
      CHECK(curves.bump()[flat] == bump);
      CHECK(curves.mlp()[flat] == Approx(g[hj]).epsilon(1e-12).margin(1e-12));
      CHECK(curves.sink()[flat] == Approx(slope + g[hj] + bump).epsilon(1e-12).margin(1e-12));
      CHECK(prior.at(length - 1, j) ==
            Approx(goat::test::relative_prior(head, positions, length - 1, j) + curves.sink()[flat])
                .epsilon(1e-12)
                .margin(1e-12));
    }
  }
  CHECK(std::ranges::all_of(std::span(curves.sink()).first(heads * length),
                            [](double value) { return value == 0; }));
}

TEST_CASE("prior analysis: rows and statistics match a naive softmax") {
  const std::uint64_t seed = fresh_seed();
  INFO("seed " << seed);
  Rng rng(seed);
  for (const std::int64_t length : {2, 5, 40}) {
    const Curves curves = random_curves(rng, length, 1.5);
    const LogPrior prior = curves.view();
    const std::vector<PriorRow> rows = prior_rows(prior);
    const PriorStatistics statistics = prior_statistics(prior, rows);
    const std::int64_t first = std::max<std::int64_t>(1, length / 4);
    REQUIRE(statistics.first_row == first);
    REQUIRE(statistics.mass_lag.size() == static_cast<std::size_t>(std::min<std::int64_t>(9, length)));

    double mass_first = 0, sensitivity = 0, divergence = 0;
    std::vector<double> lags(statistics.mass_lag.size());
    for (std::int64_t i = first; i < length; ++i) {
      const std::vector<double> pi = naive_row(prior, i);
      const double weight = 1 / static_cast<double>(length - first);
      mass_first += weight * pi[0];
      sensitivity += weight * pi[0] * (1 - pi[0]);
      for (const double p : pi) divergence += weight * p * std::log(p * static_cast<double>(i + 1));
      for (std::size_t d = 0; d < lags.size() && d < pi.size(); ++d)
        lags[d] += weight * pi[static_cast<std::size_t>(i) - d];
      CHECK(std::exp(prior.at(i, i) - rows[static_cast<std::size_t>(i)].log_normaliser) ==
            Approx(pi.back()).epsilon(1e-12));
      CHECK(rows[static_cast<std::size_t>(i)].outside_first == Approx(1 - pi[0]).epsilon(1e-10));
    }
    CHECK(statistics.mass_first == Approx(mass_first).epsilon(1e-12));
    CHECK(statistics.outside_first == Approx(1 - mass_first).epsilon(1e-10));
    CHECK(statistics.sensitivity == Approx(sensitivity).epsilon(1e-10));
    CHECK(statistics.divergence == Approx(divergence).epsilon(1e-10).margin(1e-12));
    for (std::size_t d = 0; d < lags.size(); ++d)
      CHECK(statistics.mass_lag[d] == Approx(lags[d]).epsilon(1e-12));
  }
}

TEST_CASE(
    "prior analysis: theorem 2 holds in every row, also where 1 - p_0 is below rounding, and a row outside "
    "it is counted") {
  const std::uint64_t seed = fresh_seed();
  INFO("seed " << seed);
  Rng rng(seed);
  for (const double scale : {0.0, 0.1, 3.0, 200.0})
    for (const double bump : {-700.0, 0.0, 60.0, 2000.0}) {
      Curves curves = random_curves(rng, 50, scale);
      curves.sink[0] += bump;
      const PriorStatistics statistics = statistics_of(curves.view());
      INFO("scale " << scale << ", bump " << bump);
      CHECK(statistics.theorem2_rows == 49);
      CHECK(statistics.theorem2_violations == 0);
    }

  Curves sink{std::vector<double>(50), std::vector<double>(50)};
  sink.sink[0] = 60;
  std::vector<PriorRow> rows = prior_rows(sink.view());
  CHECK(rows[30].outside_first == Approx(30 * std::exp(-60.0)).epsilon(1e-10));
  CHECK(rows[30].margin == 60);
  CHECK(rows[30].theorem2_bound(30) == Approx(30 * std::exp(-60.0)).epsilon(1e-10));
  rows[20].outside_first *= 1.001;
  rows[21].outside_first = not_a_number;
  CHECK(prior_statistics(sink.view(), rows).theorem2_violations == 2);
}

TEST_CASE("prior analysis: a head's kind is where half of its mass lies") {
  for (const PriorKind kind : {PriorKind::uniform, PriorKind::sink, PriorKind::previous_token,
                               PriorKind::local, PriorKind::long_range}) {
    const Curves curves = typical_curves(kind);
    CHECK(std::string(name_of(kind_of(statistics_of(curves.view())))) == name_of(kind));
  }
}

TEST_CASE("prior analysis: the spectrum's statistics are those of a prior worked out by hand") {
  PriorWeights first, second;
  first.heads = second.heads = 2;
  first.frequency = second.frequency = {1, 0.01};
  first.alpha = {0, 3, 0, 0}, first.beta = {0, 4, 0, 0};            // amplitudes 5 and 0
  second.alpha = {0.3, 0, 0.6, 0.8}, second.beta = {0.4, 0, 0, 0};  // 0.5 and 1.4
  const Spectrum spectrum = spectrum_of({first, second});
  const double total = 25 + 0.25 + 1;
  CHECK(spectrum.energy[0] == Approx((0.25 + 0.36) / total));
  CHECK(spectrum.energy[1] == Approx((25 + 0.64) / total));
  CHECK(spectrum.smallest == 0);
  CHECK(spectrum.largest == 5);
  CHECK(spectrum.mean == Approx(6.9 / 4));
  CHECK(spectrum.deviation == Approx(std::sqrt((25 + 0.25 + 1.96) / 4 - 6.9 * 6.9 / 16)));
  CHECK(spectrum.active == 2);
  CHECK(spectrum.sine_dominated == 2);
  CHECK(std::isnan(spectrum.ratio[1]));
  CHECK(spectrum.median_ratio == Approx(4.0 / 3));  // of 4/3, 4/3 and 0
  CHECK(spectrum.layers[0].mean_amplitude == 2.5);
  CHECK(spectrum.layers[1].active == 1);

  second.alpha = {0, 0, 0, 0};
  CHECK(spectrum_of({second}).median_ratio == infinity);
  second.beta = {0, 0, 0, 0};
  CHECK(std::isnan(spectrum_of({second}).median_ratio));
  CHECK(std::isnan(spectrum_of({second}).energy[0]));
}

TEST_CASE("attention probe: a query's readings match a naive softmax, and theorem 1 holds for every key") {
  const std::uint64_t seed = fresh_seed();
  INFO("seed " << seed);
  Rng rng(seed);
  constexpr std::int64_t length = 200;
  const Curves curves = random_curves(rng, length, 2);
  const std::vector<PriorRow> rows = prior_rows(curves.view());
  std::vector<double> scratch(length);
  for (const std::int64_t i : {0, 1, 127, 128, 199}) {
    std::vector<float> content;
    for (const double s : normal(rng, i + 1, 2)) content.push_back(static_cast<float>(s));
    const QueryReading reading =
        read_query(content, curves.view(), rows[static_cast<std::size_t>(i)].log_normaliser, scratch);
    const std::vector<double> p = naive_row(curves.view(), i, content);
    const auto [low, high] = std::ranges::minmax(content);
    CHECK(reading.omega == Approx(static_cast<double>(high) - static_cast<double>(low)));
    CHECK(reading.first == Approx(p[0]).epsilon(1e-12));
    CHECK(reading.largest == Approx(*std::ranges::max_element(p)).epsilon(1e-12));
    CHECK(reading.recent ==
          Approx(std::accumulate(p.end() - std::min<std::int64_t>(i + 1, 128), p.end(), 0.0)).epsilon(1e-12));
    CHECK(reading.violations == 0);
    // With a wrong normaliser the prior is no distribution, and no key is within the bounds.
    CHECK(read_query(content, curves.view(), rows[static_cast<std::size_t>(i)].log_normaliser - 100, scratch)
              .violations == i + 1);
    content[0] = std::numeric_limits<float>::quiet_NaN();
    CHECK(read_query(content, curves.view(), 0, scratch).violations == i + 1);
  }
}

namespace {
// Random tokens.
class RandomTokens final : public TokenSource {
 public:
  std::string description() const override { return "random tokens"; }
  std::uint64_t sequences() const override { return endless; }
  void read(std::uint64_t sequence, std::span<std::int32_t> inputs,
            std::span<std::int32_t> targets) override {
    Rng rng(sequence);
    for (std::int32_t& token : inputs) token = static_cast<std::int32_t>(rng() % 11);
    std::ranges::copy(inputs, targets.begin());
  }
};

Config tiny_config(const std::vector<std::string>& settings = {}) {
  std::vector<std::string> all = {"model.layers=2", "model.heads=2", "model.width=24", "model.vocab=11",
                                  "prior.pos_rank=2"};
  all.insert(all.end(), settings.begin(), settings.end());
  return load_config("copy_mixture", all);
}

// Parameters of a tiny model on a device; q projections are zero unless `content`.
struct TinyModel {
  TinyModel(Device& device, std::uint64_t seed, bool content, const Config& chosen = tiny_config())
      : config(chosen) {
    declare_parameters(config, parameters);
    parameters.plan(memory, false);
    memory.allocate(device);
    parameters.bind();
    parameters.initialize(device, seed);
    for (const StoredTensor& tensor : parameters.stored()) {
      if (tensor.name.find(".attn.q.") == std::string::npos) continue;
      std::vector<float> values = parameters.read(device, tensor);
      for (float& value : values) value *= content ? 50.0f : 0.0f;
      parameters.write(device, tensor, values);
    }
  }
  Config config;
  ParameterSet parameters;
  MemoryPlan memory;
};
}  // namespace

TEST_CASE(
    "attention probe: without content attention is the prior; with it, omega is positive and theorem 1 still "
    "holds") {
  constexpr std::int64_t length = 13, sequences = 3;
  for (const std::string& name : goat::test::device_names()) {
    const auto device = open_device(name);
    const std::uint64_t seed = fresh_seed();
    INFO("device " << name << ", seed " << seed);
    Rng rng(seed);
    std::vector<Curves> curves;
    std::vector<std::vector<double>> normalisers(4);
    std::vector<NormalisedPrior> priors;
    for (std::vector<double>& normaliser : normalisers) {
      curves.push_back(random_curves(rng, length, 1));
      for (const PriorRow& row : prior_rows(curves.back().view())) normaliser.push_back(row.log_normaliser);
    }
    for (std::size_t n = 0; n < curves.size(); ++n) priors.push_back({curves[n].view(), normalisers[n]});

    RandomTokens source;
    const TinyModel silent(*device, seed, false);
    const ProbeReadings readings =
        probe_attention(silent.config, silent.parameters, *device, source, sequences, priors);
    REQUIRE(readings.values.size() == static_cast<std::size_t>(2 * 2 * sequences * length * 4));
    for (std::size_t n = 0; n < readings.values.size(); n += 4) {
      const std::size_t i = n / 4 % length, layer_head = n / 4 / (length * sequences);
      CHECK(readings.values[n] == 0);
      CHECK(readings.values[n + 1] ==
            Approx(naive_row(curves[layer_head].view(), static_cast<std::int64_t>(i))[0]).epsilon(1e-6));
      CHECK(readings.values[n + 3] == Approx(1));
    }
    const TinyModel speaking(*device, seed, true);
    const ProbeReadings loud =
        probe_attention(speaking.config, speaking.parameters, *device, source, sequences, priors);
    for (std::size_t n = 0; n < 4; ++n) {
      CHECK(loud.mean(static_cast<std::int64_t>(n) / 2, static_cast<std::int64_t>(n) % 2, 0, 1) > 0.01);
      CHECK(loud.theorem1_keys[n] == sequences * length * (length + 1) / 2);
      CHECK(loud.theorem1_violations[n] == 0);
    }
  }
}

namespace {
// Readings of three sequences of 13 tokens, without a prior.
ProbeReadings readings_of(const TinyModel& model, Device& device) {
  constexpr std::int64_t length = 13, sequences = 3;
  const PriorCurves uniform(1, 1, length);
  std::vector<double> log_keys;
  for (std::int64_t i = 1; i <= length; ++i) log_keys.push_back(std::log(static_cast<double>(i)));
  const auto heads = static_cast<std::size_t>(model.config.model.layers * model.config.model.heads);
  const std::vector<NormalisedPrior> priors(heads, {uniform.log_prior(0, 0), log_keys});
  RandomTokens source;
  return probe_attention(model.config, model.parameters, device, source, sequences, priors);
}
}  // namespace

TEST_CASE("attention probe: heads of queries that share a head of keys read it, normed or not") {
  for (const std::string& name : goat::test::device_names())
    for (const char* qk_norm : {"model.qk_norm=false", "model.qk_norm=true"}) {
      INFO("device " << name << ", " << qk_norm);
      const auto device = open_device(name);
      const std::uint64_t seed = fresh_seed();
      const std::vector<std::string> four = {"model.attention=none", "model.heads=4", "model.width=48",
                                             qk_norm};
      std::vector<std::string> two_of_keys = four;
      two_of_keys.emplace_back("model.kv_heads=2");
      const TinyModel shared(*device, seed, true, tiny_config(two_of_keys)),
          apart(*device, seed, true, tiny_config(four));
      for (std::size_t n = 0; n < apart.parameters.stored().size(); ++n) {
        const StoredTensor& tensor = apart.parameters.stored()[n];
        const std::vector<float> rows = shared.parameters.read(*device, shared.parameters.stored()[n]);
        std::vector<float> values;
        const auto all = static_cast<std::size_t>(tensor.layout.elements()), half = rows.size() / 2;
        for (std::size_t i = 0; i < all; ++i)  // each head's rows twice, where there are half as many
          values.push_back(rows[rows.size() == all ? i : i / (2 * half) * half + i % half]);
        apart.parameters.write(*device, tensor, values);
      }
      const ProbeReadings got = readings_of(shared, *device), want = readings_of(apart, *device);
      CHECK(got.mean(0, 0, 0, 1) > 0.01);
      for (std::size_t i = 0; i < want.values.size(); ++i)
        CHECK(got.values[i] == Approx(want.values[i]).epsilon(1e-4).margin(1e-5));
    }
}

TEST_CASE("attention probe: what the gates forget is part of the prior of a query") {
  for (const std::string& name : goat::test::device_names()) {
    INFO("device " << name);
    const auto device = open_device(name);
    const TinyModel model(*device, 5, false, tiny_config({"model.attention=forget"}));
    for (const StoredTensor& tensor : model.parameters.stored())
      if (tensor.name.find(".forget.") != std::string::npos)
        model.parameters.write(*device, tensor,
                               std::vector<float>(static_cast<std::size_t>(tensor.layout.elements()),
                                                  tensor.name.ends_with("bias") ? 1.0f : 0.0f));
    const ProbeReadings readings = readings_of(model, *device);
    const double kept = 1 / (1 + std::exp(-1.0));
    for (std::size_t n = 0; n < readings.values.size(); n += 4) {
      const auto i = static_cast<double>(n / 4 % 13);
      CHECK(readings.values[n] == 0);
      CHECK(readings.values[n + 1] ==
            Approx(std::pow(kept, i) * (1 - kept) / (1 - std::pow(kept, i + 1))).epsilon(1e-5));
      CHECK(readings.values[n + 2] == Approx((1 - kept) / (1 - std::pow(kept, i + 1))).epsilon(1e-5));
    }
    for (const std::int64_t violations : readings.theorem1_violations) CHECK(violations == 0);
  }
}
