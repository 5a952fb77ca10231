#include "train/analyze.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "train/analysis_report.h"
#include "train/files.h"
#include "train/npy.h"
#include "train/prior_setup.h"
#include "train/sources.h"
#include "train/trained_model.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
constexpr std::int64_t longest = 1 << 20;              // positions
constexpr std::int64_t longest_log_prior = 4096;       // rows of log_prior.npy: 64 MiB
constexpr std::int64_t most_sequences = 4;             // of the probe
constexpr std::int64_t most_probe_tokens = 16 * 1024;  // its cost grows with the square of the length

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

void check_range(const char* option, std::int64_t value, std::int64_t count, const char* what) {
  if (value < 0 || value >= count)
    throw ConfigError(std::string(option) + " " + std::to_string(value) + ": the model has the " + what +
                      " 0 to " + std::to_string(count - 1));
}

void check_options(const AnalyzeOptions& options, const Config& config) {
  check_range("--layer", options.layer, config.model.layers, "layers");
  check_range("--head", options.head, config.model.heads, "heads");
  if (options.length != 0 && (options.length < 2 || options.length > longest))
    throw ConfigError("--length " + std::to_string(options.length) + ": expected 2 to " +
                      std::to_string(longest) + " positions");
}

// The prior of one layer as the model computes with it.
PriorWeights read_prior(const TrainedModel& model, Device& device, std::int64_t layer) {
  const Config& config = model.config();
  const auto read = [&](const std::string& name) {
    const auto& stored = model.parameters().stored();
    const auto tensor = std::ranges::find(stored, "blocks." + std::to_string(layer) + ".attn.prior." + name,
                                          &StoredTensor::name);
    const std::vector<float> values = model.parameters().read(device, *tensor);
    return std::vector<double>(values.begin(), values.end());
  };
  PriorWeights weights{
      .heads = config.model.heads,
      .alpha = read("alpha"),
      .beta = read("beta"),
      .frequency = config.prior.learned_frequencies
                       ? read("frequency")
                       : fourier_frequencies(config.prior.pos_rank, config.prior.base),
      .slope = std::vector<double>(index(config.model.heads)),
      .bump = read("bump"),
      .w1 = read("sink.w1"),
      .b1 = read("sink.b1"),
      .w2 = read("sink.w2"),
      .absolute_frequency = fourier_frequencies(config.prior.abs_rank, config.prior.abs_base),
      .train_length = config.data.seq_len};
  if (config.prior.recency != "off") weights.slope = read("slope");
  if (config.prior.recency == "softplus")
    for (double& slope : weights.slope) slope = std::log1p(std::exp(-std::abs(slope))) + std::max(slope, 0.0);
  return weights;
}

// The log-normaliser of every row of every head [L, H, T], and the heads' statistics.
std::vector<double> measure_prior(PriorReport& prior, std::int64_t layers, std::int64_t heads,
                                  std::int64_t length) {
  std::vector<double> log_normaliser(index(layers * heads * length));
  prior.statistics.resize(index(layers * heads));
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t flat = 0; flat < layers * heads; ++flat) {
    const LogPrior log_prior = prior.curves.log_prior(flat / heads, flat % heads);
    const std::vector<PriorRow> rows = prior_rows(log_prior);
    std::ranges::transform(rows, log_normaliser.begin() + flat * length, &PriorRow::log_normaliser);
    prior.statistics[index(flat)] = prior_statistics(log_prior, rows);
  }
  return log_normaliser;
}

std::vector<double> report_prior(AnalysisReport& report, const TrainedModel& model, Device& device) {
  const std::int64_t layers = model.config().model.layers, heads = model.config().model.heads;
  PriorReport& prior = report.prior.emplace(
      PriorReport{.weights = {}, .curves = {layers, heads, report.length}, .statistics = {}, .spectrum = {}});
  for (std::int64_t layer = 0; layer < layers; ++layer)
    prior.curves.evaluate(layer, prior.weights.emplace_back(read_prior(model, device, layer)));
  prior.spectrum = spectrum_of(prior.weights);
  return measure_prior(prior, layers, heads, report.length);
}

// Validation sequences of report.length tokens, or null, saying why, where the run has none.
std::unique_ptr<TokenSource> open_data(const AnalyzeOptions& options, const AnalysisReport& report) {
  Config config = report.config;
  config.data.seq_len = report.length;
  config.eval.tokens = std::max<std::int64_t>(config.eval.tokens, 1);  // 0 would mean no validation data
  if (!options.data.empty()) {
    if (config.data.source != "shards")
      throw ConfigError("--data " + options.data +
                        ": the model was trained on generated data (data.source = \"" + config.data.source +
                        "\"), and is probed on that; leave --data out");
    config.data.val = options.data;
    return open_validation_source(config);
  }
  std::string reason = "the run has no validation data (data.val is empty)";
  try {
    if (std::unique_ptr<TokenSource> source = open_validation_source(config)) return source;
  } catch (const DataError& error) {
    reason = error.what();
  }
  std::fprintf(stderr, "warning: signal_vs_sink.npy is left out: %s\nname other shards with --data GLOB\n",
               reason.c_str());
  return nullptr;
}

// log_normaliser [L, H, T] of the learned prior; empty: the prior is uniform.
void report_probe(AnalysisReport& report, const TrainedModel& model, Device& device, TokenSource& source,
                  const std::vector<double>& log_normaliser) {
  const std::int64_t layers = report.config.model.layers, heads = report.config.model.heads,
                     length = report.length;
  const PriorCurves uniform(1, 1, length);
  std::vector<double> log_keys(index(length));
  for (std::int64_t i = 0; i < length; ++i) log_keys[index(i)] = std::log(static_cast<double>(i + 1));
  std::vector<NormalisedPrior> priors(index(layers * heads), {uniform.log_prior(0, 0), log_keys});
  for (std::int64_t flat = 0; report.prior && flat < layers * heads; ++flat)
    priors[index(flat)] = {report.prior->curves.log_prior(flat / heads, flat % heads),
                           std::span(log_normaliser).subspan(index(flat * length), index(length))};

  const std::int64_t affordable = std::clamp<std::int64_t>(most_probe_tokens / length, 1, most_sequences);
  const std::int64_t sequences = static_cast<std::int64_t>(
      std::min<std::uint64_t>(source.sequences(), static_cast<std::uint64_t>(affordable)));
  report.probe_data = source.description();
  report.probe = probe_attention(report.config, model.parameters(), device, source, sequences, priors);
}

// K [n, n] of one head; -inf at the masked keys j > i.
std::vector<float> log_prior_matrix(const LogPrior& prior, std::int64_t n) {
  std::vector<float> matrix(index(n * n), -std::numeric_limits<float>::infinity());
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j <= i; ++j) matrix[index(i * n + j)] = static_cast<float>(prior.at(i, j));
  return matrix;
}

// Makes the folder, without the files of an earlier analysis: some of them may not be written again.
void prepare_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw std::runtime_error("cannot create the folder " + folder.string() + ": " + error.message());
  for (const char* name : {"analysis.json", "sink.npy", "sink_slope.npy", "sink_mlp.npy", "sink_bump.npy",
                           "kappa.npy", "log_prior.npy", "signal_vs_sink.npy"})
    fs::remove(folder / name);
}

void write_files(const AnalysisReport& report, const fs::path& folder) {
  if (report.prior) {
    const PriorCurves& curves = report.prior->curves;
    write_npy(folder / "sink.npy", curves.shape(), curves.sink());
    write_npy(folder / "sink_slope.npy", curves.shape(), curves.slope());
    write_npy(folder / "sink_mlp.npy", curves.shape(), curves.mlp());
    write_npy(folder / "sink_bump.npy", curves.shape(), curves.bump());
    write_npy(folder / "kappa.npy", curves.shape(), curves.relative());
    const std::int64_t n = report.log_prior_length;
    write_npy(folder / "log_prior.npy", {n, n},
              log_prior_matrix(curves.log_prior(report.log_prior_layer, report.log_prior_head), n));
  }
  if (report.probe) {
    const ProbeReadings& probe = *report.probe;
    write_npy(folder / "signal_vs_sink.npy",
              {probe.layers, probe.heads, probe.sequences, probe.length, ProbeReadings::columns},
              probe.values);
  }
  write_file_atomically(folder / "analysis.json", to_json(report).dump(2) + "\n");
}

void print_files(const AnalysisReport& report, const fs::path& folder) {
  std::printf(
      "\nwritten to %s: analysis.json%s%s\n", folder.c_str(),
      report.prior ? ", sink.npy, sink_slope.npy, sink_mlp.npy, sink_bump.npy, kappa.npy, log_prior.npy" : "",
      report.probe ? ", signal_vs_sink.npy" : "");
  if (!report.prior)
    std::printf("attention \"%s\" has no learned prior: no prior files\n",
                report.config.model.attention.c_str());
  if (report.prior && report.log_prior_length < report.length)
    std::printf("log_prior.npy holds the first %lld positions only\n",
                static_cast<long long>(report.log_prior_length));
}
}  // namespace

int run_analyze(const AnalyzeOptions& options, Device& device) {
  const TrainedModel model(options.checkpoint, device);
  check_options(options, model.config());
  AnalysisReport report;
  report.config = model.config();
  report.checkpoint = model.checkpoint().string();
  report.step = model.step();
  report.length = options.length ? options.length : report.config.data.seq_len;
  report.log_prior_layer = options.layer;
  report.log_prior_head = options.head;
  report.log_prior_length = std::min(report.length, longest_log_prior);

  const std::unique_ptr<TokenSource> source = open_data(options, report);
  std::vector<double> log_normaliser;
  if (report.config.has_prior()) log_normaliser = report_prior(report, model, device);
  if (source) report_probe(report, model, device, *source, log_normaliser);

  const fs::path folder = options.out.empty() ? model.run() / "analysis" : fs::path(options.out);
  prepare_folder(folder);
  write_files(report, folder);
  print_summary(report);
  print_files(report, folder);
  return 0;
}

}  // namespace goat
