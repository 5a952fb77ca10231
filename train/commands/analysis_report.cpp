#include "train/commands/analysis_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "train/config/counted.h"

namespace goat {

using nlohmann::json;

namespace {
std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
std::int64_t first_row(const AnalysisReport& report) { return std::max<std::int64_t>(1, report.length / 4); }

template <class T>
T total(const std::vector<T>& values) {
  return std::accumulate(values.begin(), values.end(), T{});
}

// The meaning of the keys in analysis.json.
json definitions() {
  return {
      {"log_prior",
       "K_ij = relative[i-j] + sink[j] for j <= i; pi_i = softmax over j <= i of K_i, the causal prior of "
       "query i"},
      {"sink",
       "u(j) = slope*j + g(phi(j)) + bump*[j == 0], nats; u_first = u(0); argmax_sink is a key j, "
       "argmax_relative a lag d"},
      {"means",
       "mass_*, divergence, theorem2 and signal_vs_sink are means over the query rows i >= first_row"},
      {"mass_lag", "mean of pi_i,i-d for d = 0, 1, ...; a row with fewer than d keys before it counts as 0"},
      {"divergence", "mean KL(pi_i || uniform over j <= i), nats"},
      {"kind",
       "uniform: divergence < 0.05; else, by where half or more of the mass lies, sink: key 0; previous "
       "token: lag 1; local: lags 0 to 8; else long range"},
      {"amplitude",
       "of a head: sum_r sqrt(alpha_r^2 + beta_r^2); active: above 1.0; deviation: population standard "
       "deviation"},
      {"energy",
       "share of alpha_r^2 + beta_r^2 summed over all heads, per frequency index; r = 1 is the highest "
       "frequency"},
      {"sine_dominated",
       "heads with |beta| > |alpha|, 2-norms over r; median_ratio is the median of |beta| / |alpha|"},
      {"theorem1",
       "pi_ij exp(-omega_i) <= p_ij <= pi_ij exp(omega_i) with p_i = softmax of content + K_i and omega_i "
       "the range of the content logits; keys where it fails by more than 1e-9 in the logarithm are "
       "violations"},
      {"theorem2",
       "at zero content, with margin delta_i = K_i0 - max over 0 < j <= i of K_ij: 1 - pi_i0 <= i / "
       "(exp(delta_i) + i); outside_first is the left side, bound the right; smallest_margin is over rows i "
       ">= first_row; violations count rows i >= 1 where outside_first or sensitivity exceeds the bound"},
      {"sensitivity",
       "Psi_i = d pi_i0 / d s_i0 = pi_i0 (1 - pi_i0): how fast the first key's probability moves with one "
       "content logit s, at zero content"},
  };
}

json to_json(const Spectrum& spectrum, const PriorReport& prior) {
  std::vector<double> reversed(spectrum.energy.rbegin(), spectrum.energy.rend());
  json layers = json::array(), frequencies = json::array();
  for (const Spectrum::Layer& layer : spectrum.layers)
    layers.push_back({{"mean_amplitude", layer.mean_amplitude}, {"active", layer.active}});
  for (const PriorWeights& weights : prior.weights) frequencies.push_back(weights.frequency);
  return {{"frequencies", frequencies},
          {"energy_first_to_last", spectrum.energy},
          {"energy_last_to_first", reversed},
          {"amplitude",
           {{"min", spectrum.smallest},
            {"max", spectrum.largest},
            {"mean", spectrum.mean},
            {"deviation", spectrum.deviation}}},
          {"heads", spectrum.amplitude.size()},
          {"active", spectrum.active},
          {"sine_dominated", spectrum.sine_dominated},
          {"median_ratio", spectrum.median_ratio},
          {"layers", layers}};
}

std::int64_t argmax(std::span<const double> values) {
  return std::ranges::max_element(values) - values.begin();
}

json prior_json(const PriorReport& prior, std::int64_t layer, std::int64_t head) {
  const PriorWeights& weights = prior.weights[index(layer)];
  const std::size_t flat = index(layer * weights.heads + head);
  const PriorStatistics& s = prior.statistics[flat];
  const LogPrior log_prior = prior.curves.log_prior(layer, head);
  return {{"kind", name_of(kind_of(s))},
          {"slope", weights.slope[index(head)]},
          {"u_first", log_prior.sink[0]},
          {"argmax_sink", argmax(log_prior.sink)},
          {"argmax_relative", argmax(log_prior.relative)},
          {"amplitude", prior.spectrum.amplitude[flat]},
          {"ratio", prior.spectrum.ratio[flat]},
          {"mass_first", s.mass_first},
          {"mass_lag", s.mass_lag},
          {"divergence", s.divergence},
          {"theorem2",
           {{"outside_first", s.outside_first},
            {"bound", s.theorem2_bound},
            {"sensitivity", s.sensitivity},
            {"smallest_margin", s.smallest_margin},
            {"rows", s.theorem2_rows},
            {"violations", s.theorem2_violations}}}};
}

json probe_json(const ProbeReadings& probe, std::int64_t layer, std::int64_t head, std::int64_t first) {
  const std::size_t flat = index(layer * probe.heads + head);
  return {
      {"omega", probe.mean(layer, head, 0, first)},
      {"p_first", probe.mean(layer, head, 1, first)},
      {"p_max", probe.mean(layer, head, 2, first)},
      {"mass_last_128", probe.mean(layer, head, 3, first)},
      {"theorem1", {{"keys", probe.theorem1_keys[flat]}, {"violations", probe.theorem1_violations[flat]}}}};
}

std::int64_t theorem2_violations(const PriorReport& prior) {
  std::int64_t sum = 0;
  for (const PriorStatistics& s : prior.statistics) sum += s.theorem2_violations;
  return sum;
}
}  // namespace

json to_json(const AnalysisReport& report) {
  const Config::Model& model = report.config.model;
  json result = {{"checkpoint", report.checkpoint},
                 {"step", report.step},
                 {"attention", model.attention},
                 {"layers", model.layers},
                 {"heads", model.heads},
                 {"length", report.length},
                 {"train_length", report.config.data.seq_len},
                 {"first_row", first_row(report)},
                 {"definitions", definitions()}};
  if (report.prior) {
    if (!report.prior->spectrum.energy.empty())
      result["spectrum"] = to_json(report.prior->spectrum, *report.prior);
    result["theorem2_violations"] = theorem2_violations(*report.prior);
    result["log_prior"] = {{"layer", report.log_prior_layer},
                           {"head", report.log_prior_head},
                           {"length", report.log_prior_length}};
  }
  if (report.probe) {
    result["signal_vs_sink"] = {{"data", report.probe_data}, {"sequences", report.probe->sequences}};
    result["theorem1_violations"] = total(report.probe->theorem1_violations);
  }
  for (std::int64_t layer = 0; layer < model.layers; ++layer)
    for (std::int64_t head = 0; head < model.heads; ++head) {
      json entry = {{"layer", layer}, {"head", head}};
      if (report.prior) entry["prior"] = prior_json(*report.prior, layer, head);
      if (report.probe) entry["signal_vs_sink"] = probe_json(*report.probe, layer, head, first_row(report));
      result["by_head"].push_back(entry);
    }
  return result;
}

namespace {
constexpr std::int64_t most_rows = 64;  // a table with more rows is only in analysis.json

// Prints "sink            2 of 8: 0.1 3.2" for each kind that occurs.
void print_kinds(const PriorReport& prior, std::int64_t heads) {
  std::printf("\nhead kinds (layer.head), by where half or more of the causal prior lies\n");
  for (const PriorKind kind : {PriorKind::sink, PriorKind::previous_token, PriorKind::local,
                               PriorKind::long_range, PriorKind::uniform}) {
    std::string names;
    std::int64_t count = 0;
    for (std::int64_t flat = 0; flat < std::ssize(prior.statistics); ++flat) {
      if (kind_of(prior.statistics[index(flat)]) != kind) continue;
      if (++count <= most_rows)
        names += " " + std::to_string(flat / heads) + "." + std::to_string(flat % heads);
    }
    if (count > most_rows) names += " ...";
    if (count > 0)
      std::printf("  %-15s %lld of %zu:%s\n", name_of(kind), static_cast<long long>(count),
                  prior.statistics.size(), names.c_str());
  }
}

void print_head(const AnalysisReport& report, std::int64_t layer, std::int64_t head) {
  const std::size_t flat = index(layer * report.config.model.heads + head);
  std::printf("%5lld %5lld", static_cast<long long>(layer), static_cast<long long>(head));
  if (report.prior) {
    const PriorStatistics& s = report.prior->statistics[flat];
    const LogPrior log_prior = report.prior->curves.log_prior(layer, head);
    std::printf("  %-14s %6.3f %6.3f %9.4f %9.3f %8lld %10lld %9.3f", name_of(kind_of(s)), s.mass_first,
                s.mass_lag.size() > 1 ? s.mass_lag[1] : 0.0,
                report.prior->weights[index(layer)].slope[index(head)], log_prior.sink[0],
                static_cast<long long>(argmax(log_prior.sink)),
                static_cast<long long>(argmax(log_prior.relative)), report.prior->spectrum.amplitude[flat]);
  }
  if (report.probe) {
    const std::int64_t first = first_row(report);
    std::printf("  %8.3f %6.3f %6.3f %8.3f", report.probe->mean(layer, head, 0, first),
                report.probe->mean(layer, head, 1, first), report.probe->mean(layer, head, 2, first),
                report.probe->mean(layer, head, 3, first));
  }
  std::printf("\n");
}

void print_heads(const AnalysisReport& report) {
  std::printf("\n%5s %5s", "layer", "head");
  if (report.prior)
    std::printf("  %-14s %6s %6s %9s %9s %8s %10s %9s", "prior", "j = 0", "lag 1", "slope", "u(0)",
                "argmax u", "argmax lag", "amplitude");
  if (report.probe) std::printf("  %8s %6s %6s %8s", "omega", "p_0", "p_max", "last 128");
  std::printf("\n");
  for (std::int64_t layer = 0; layer < report.config.model.layers; ++layer)
    for (std::int64_t head = 0; head < report.config.model.heads; ++head) print_head(report, layer, head);
}

void print_spectrum(const Spectrum& spectrum) {
  std::printf("\nspectrum of the relative part, %s\n  energy of frequency index 1 .. %zu (highest first):",
              counted(std::ssize(spectrum.amplitude), "head").c_str(), spectrum.energy.size());
  for (const double energy : spectrum.energy) std::printf(" %.1f%%", 100 * energy);
  std::printf("; lowest first:");
  for (auto energy = spectrum.energy.rbegin(); energy != spectrum.energy.rend(); ++energy)
    std::printf(" %.1f%%", 100 * *energy);
  std::printf("\n  amplitude: min %.3f, max %.3f, mean %.3f, deviation %.3f; %s above 1.0\n",
              spectrum.smallest, spectrum.largest, spectrum.mean, spectrum.deviation,
              counted(spectrum.active, "head").c_str());
  std::printf("  |beta| > |alpha| in %s; median ratio %.3f\n",
              counted(spectrum.sine_dominated, "head").c_str(), spectrum.median_ratio);
  for (const std::size_t layer : std::set<std::size_t>{0, spectrum.layers.size() - 1})
    std::printf("  layer %zu: mean amplitude %.3f, %lld active\n", layer,
                spectrum.layers[layer].mean_amplitude, static_cast<long long>(spectrum.layers[layer].active));
}

void print_slopes(const std::vector<PriorWeights>& layers) {
  std::vector<double> slopes;
  for (const PriorWeights& weights : layers)
    slopes.insert(slopes.end(), weights.slope.begin(), weights.slope.end());
  std::ranges::sort(slopes);
  std::printf(
      "\nslopes: min %.4f, median %.4f, max %.4f nats a token; %lld of %zu above 0.01\n", slopes.front(),
      slopes[slopes.size() / 2], slopes.back(),
      static_cast<long long>(std::ranges::count_if(slopes, [](double slope) { return slope > 0.01; })),
      slopes.size());
}

void print_theorem(const char* name, std::int64_t violations, std::int64_t checked, const char* noun,
                   const char* rest) {
  std::printf("%s: %s in %s %s\n", name, counted(violations, "violation").c_str(),
              counted(checked, noun).c_str(), rest);
}
}  // namespace

void print_summary(const AnalysisReport& report) {
  const Config::Model& model = report.config.model;
  std::printf("model   %s, step %lld: %s, %s, attention %s\n", report.checkpoint.c_str(),
              static_cast<long long>(report.step), counted(model.layers, "layer").c_str(),
              counted(model.heads, "head").c_str(), model.attention.c_str());
  std::printf("length  %lld (trained at %lld); means over the queries i >= %lld\n",
              static_cast<long long>(report.length), static_cast<long long>(report.config.data.seq_len),
              static_cast<long long>(first_row(report)));
  if (report.probe)
    std::printf("data    %s; %s of them probed\n", report.probe_data.c_str(),
                counted(report.probe->sequences, "sequence").c_str());
  if (model.layers * model.heads <= most_rows && (report.prior || report.probe)) print_heads(report);
  if (report.prior) {
    print_kinds(*report.prior, model.heads);
    print_slopes(report.prior->weights);
    if (!report.prior->spectrum.energy.empty()) print_spectrum(report.prior->spectrum);
    std::int64_t rows = 0;
    for (const PriorStatistics& s : report.prior->statistics) rows += s.theorem2_rows;
    std::printf("\n");
    print_theorem("theorem 2", theorem2_violations(*report.prior), rows, "row", "of the causal prior");
  }
  if (report.probe)
    print_theorem("theorem 1", total(report.probe->theorem1_violations), total(report.probe->theorem1_keys),
                  "key", "of attention");
}

}  // namespace goat
