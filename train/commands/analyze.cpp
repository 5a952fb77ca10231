#include "train/commands/analyze.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/prior_setup.h"
#include "train/commands/analysis_report.h"
#include "train/config/counted.h"
#include "train/eval/evaluation_data.h"
#include "train/files/files.h"
#include "train/files/json_file.h"
#include "train/files/npy.h"
#include "train/run/trained_model.h"
#include "train/speed/slow_work.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
constexpr std::int64_t longest_log_prior = 4096;  // rows of log_prior.npy: 64 MiB
// Limits for the probe, whose cost grows with the square of the length.
constexpr std::int64_t most_sequences = 4;
constexpr std::int64_t most_probe_tokens = 16 * 1024;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

void check_index(const char* option, std::int64_t value, std::int64_t count, const char* what) {
  if (value < 0 || value >= count)
    throw ConfigError(std::string(option) + " " + std::to_string(value) + ": the model has " +
                      counted(count, what) + "; expected 0" +
                      (count > 1 ? " to " + std::to_string(count - 1) : ""));
}

void check_options(const AnalyzeOptions& options, const Config& config) {
  check_index("--layer", options.layer, config.model.layers, "layer");
  check_index("--head", options.head, config.model.heads, "head");
  const std::int64_t length = options.length.value_or(config.data.seq_len);
  if (length < 2 || length > longest_analysis)
    throw ConfigError("--length " + std::to_string(length) +
                      (options.length ? "" : " (the training length)") + ": expected 2 to " +
                      std::to_string(longest_analysis) + " positions");
  require_length(config, length, "--length " + std::to_string(length));
}

// A folder that does not exist is made later, when there is something to write into it.
void check_folder(const fs::path& folder) {
  if (fs::exists(folder) && !fs::is_directory(folder))
    throw ConfigError("--out " + folder.string() + ": is not a folder");
  if (fs::exists(folder) && ::access(folder.c_str(), W_OK | X_OK) != 0)
    throw ConfigError("--out " + folder.string() + ": cannot be written: " + std::strerror(errno));
}

// Rows for each head of keys [H_k, ..] as rows for each head of queries [H, ..].
std::vector<double> for_each_query_head(const Config& config, const std::vector<double>& rows) {
  const std::size_t heads = index(config.model.heads), kv_heads = index(config.kv_heads()),
                    columns = rows.size() / kv_heads;
  std::vector<double> all;
  for (std::size_t head = 0; head < heads; ++head) {
    const auto first = rows.begin() + static_cast<std::ptrdiff_t>(head * kv_heads / heads * columns);
    all.insert(all.end(), first, first + static_cast<std::ptrdiff_t>(columns));
  }
  return all;
}

// The prior of one layer, without slopes. read(name) gives a tensor of it.
template <class Read>
PriorWeights goat_weights(const Config& config, Read read) {
  return {.heads = config.model.heads,
          .alpha = read("alpha"),
          .beta = read("beta"),
          .frequency = config.prior.learned_frequencies
                           ? read("frequency")
                           : fourier_frequencies(config.prior.pos_rank, config.prior.base),
          .slope = std::vector<double>(index(config.model.heads)),
          .bump = for_each_query_head(config, read("bump")),
          .w1 = read("sink.w1"),
          .b1 = read("sink.b1"),
          .w2 = for_each_query_head(config, read("sink.w2")),
          .absolute_frequency = fourier_frequencies(config.prior.abs_rank, config.prior.abs_base),
          .train_length = config.data.seq_len};
}

// A prior of which every term is zero.
PriorWeights no_weights(std::int64_t heads) {
  PriorWeights weights;
  weights.heads = heads;
  weights.slope.resize(index(heads));
  weights.bump.resize(index(heads));
  return weights;
}

double softplus(double x) { return std::log1p(std::exp(-std::abs(x))) + std::max(x, 0.0); }

// The log-prior of one layer in the form that the model computes with.
PriorWeights read_prior(const TrainedModel& model, Device& device, std::int64_t layer) {
  const Config& config = model.config();
  const auto read = [&](const std::string& name) {
    const auto& stored = model.parameters().stored();
    const auto tensor = std::ranges::find(stored, "blocks." + std::to_string(layer) + ".attn.prior." + name,
                                          &StoredTensor::name);
    if (tensor == stored.end())
      throw std::logic_error("model.attention = " + config.model.attention + " has no prior." + name);
    const std::vector<float> values = model.parameters().read(device, *tensor);
    return std::vector<double>(values.begin(), values.end());
  };
  PriorWeights weights = config.has_prior() ? goat_weights(config, read) : no_weights(config.model.heads);
  if (config.parts_with_slopes().empty()) return weights;
  weights.slope = config.has_part("alibi") ? alibi_slopes(config.model.heads) : read("slope");
  if (config.has_part("alibi_learned") || (config.has_prior() && config.prior.recency == "softplus"))
    std::ranges::transform(weights.slope, weights.slope.begin(), softplus);
  return weights;
}

// Number of keys of all queries of a head: 1 + 2 + ... + T.
double keys_of(std::int64_t length) {
  return static_cast<double>(length) * static_cast<double>(length + 1) / 2;
}

// Computes the statistics of every head. Returns the log-normaliser of every row of every head, [L, H, T].
std::vector<double> measure_prior(PriorReport& prior, std::int64_t layers, std::int64_t heads,
                                  std::int64_t length) {
  std::vector<double> log_normaliser(index(layers * heads * length));
  prior.statistics.resize(index(layers * heads));
  SlowWork work("prior", "keys", static_cast<double>(layers * heads) * keys_of(length));
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t flat = 0; flat < layers * heads; ++flat) {
    const LogPrior log_prior = prior.curves.log_prior(flat / heads, flat % heads);
    const std::vector<PriorRow> rows =
        prior_rows(log_prior, [&](std::int64_t keys) { work.add(static_cast<double>(keys)); });
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

// Opens validation sequences of `length` tokens. If the run has none, prints the reason and returns null.
std::unique_ptr<TokenSource> open_data(const AnalyzeOptions& options, const TrainedModel& model,
                                       std::int64_t length) {
  std::string reason = "the run has no validation data (data.val is empty); name shards with --data GLOB";
  try {
    const EvaluationData data(model, options.data);
    if (!data.none()) return data.open(length);
  } catch (const DataError& error) {
    if (!options.data.empty()) throw;
    reason = error.what();
  }
  std::fprintf(stderr, "warning: signal_vs_sink.npy is left out: %s\n", reason.c_str());
  return nullptr;
}

// log_normaliser [L, H, T] of the prior. Empty if the prior is uniform.
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
  SlowWork work("attention", "keys", static_cast<double>(layers * heads * sequences) * keys_of(length));
  report.probe = probe_attention(report.config, model.parameters(), device, source, sequences, priors,
                                 [&](std::int64_t keys) { work.add(static_cast<double>(keys)); });
}

// K [n, n] of one head, with -inf at the masked keys j > i.
std::vector<float> log_prior_matrix(const LogPrior& prior, std::int64_t n) {
  std::vector<float> matrix(index(n * n), -std::numeric_limits<float>::infinity());
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j <= i; ++j) matrix[index(i * n + j)] = static_cast<float>(prior.at(i, j));
  return matrix;
}

// The files of one analysis. They are written beside the files of an earlier analysis and
// replace them together.
class AnalysisFiles {
 public:
  explicit AnalysisFiles(const fs::path& folder) : folder_(folder) {
    std::error_code error;
    created_ = fs::create_directories(folder, error);
    if (error)
      throw std::runtime_error("cannot create the folder " + folder.string() + ": " + error.message());
  }
  AnalysisFiles(const AnalysisFiles&) = delete;
  AnalysisFiles& operator=(const AnalysisFiles&) = delete;
  ~AnalysisFiles() {
    files_.clear();
    std::error_code not_empty;
    if (created_) fs::remove(folder_, not_empty);
  }

  FileWriter& add(const char* name) { return files_.try_emplace(name, folder_ / name).first->second; }

  // Also removes files of the earlier analysis that this one does not have.
  void commit() {
    for (auto& [name, file] : files_) file.commit();
    std::error_code error;
    for (const char* name : {"analysis.json", "sink.npy", "sink_slope.npy", "sink_mlp.npy", "sink_bump.npy",
                             "kappa.npy", "log_prior.npy", "signal_vs_sink.npy"})
      if (!files_.contains(name) && fs::is_regular_file(folder_ / name, error))
        fs::remove(folder_ / name, error);
  }

 private:
  fs::path folder_;
  bool created_ = false;
  std::map<std::string, FileWriter> files_;
};

void write_files(const AnalysisReport& report, const fs::path& folder) {
  AnalysisFiles files(folder);
  if (report.prior) {
    const PriorCurves& curves = report.prior->curves;
    write_npy(files.add("sink.npy"), curves.shape(), curves.sink());
    write_npy(files.add("sink_slope.npy"), curves.shape(), curves.slope());
    write_npy(files.add("sink_mlp.npy"), curves.shape(), curves.mlp());
    write_npy(files.add("sink_bump.npy"), curves.shape(), curves.bump());
    write_npy(files.add("kappa.npy"), curves.shape(), curves.relative());
    const std::int64_t n = report.log_prior_length;
    write_npy(files.add("log_prior.npy"), {n, n},
              log_prior_matrix(curves.log_prior(report.log_prior_layer, report.log_prior_head), n));
  }
  if (report.probe) {
    const ProbeReadings& probe = *report.probe;
    write_npy(files.add("signal_vs_sink.npy"),
              {probe.layers, probe.heads, probe.sequences, probe.length, ProbeReadings::columns},
              probe.values);
  }
  files.add("analysis.json").write(json_text(to_json(report)));
  files.commit();
}

void print_files(const AnalysisReport& report, const fs::path& folder) {
  std::printf(
      "\nwritten to %s: analysis.json%s%s\n", folder.c_str(),
      report.prior ? ", sink.npy, sink_slope.npy, sink_mlp.npy, sink_bump.npy, kappa.npy, log_prior.npy" : "",
      report.probe ? ", signal_vs_sink.npy" : "");
  if (!report.prior)
    std::printf("attention \"%s\" adds %s: no prior files\n", report.config.model.attention.c_str(),
                report.config.has_part("forget") ? "a prior to the logits that differs from text to text"
                                                 : "no prior to the logits");
  if (report.prior && report.log_prior_length < report.length)
    std::printf("log_prior.npy holds the first %lld positions only\n",
                static_cast<long long>(report.log_prior_length));
}
}  // namespace

int run_analyze(const AnalyzeOptions& options, Device& device) {
  const TrainedModel model(options.checkpoint, device, options.precision);
  check_options(options, model.config());
  const fs::path folder = options.out.empty() ? model.run() / "analysis" : fs::path(options.out);
  check_folder(folder);
  AnalysisReport report;
  report.config = model.config();
  report.checkpoint = model.checkpoint().string();
  report.step = model.step();
  report.length = options.length.value_or(report.config.data.seq_len);
  report.log_prior_layer = options.layer;
  report.log_prior_head = options.head;
  report.log_prior_length = std::min(report.length, longest_log_prior);

  const std::unique_ptr<TokenSource> source = open_data(options, model, report.length);
  std::vector<double> log_normaliser;
  if (report.config.has_prior() || !report.config.parts_with_slopes().empty())
    log_normaliser = report_prior(report, model, device);
  if (source) report_probe(report, model, device, *source, log_normaliser);

  write_files(report, folder);
  print_summary(report);
  print_files(report, folder);
  return 0;
}

}  // namespace goat
