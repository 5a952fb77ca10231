#include "train/model/evaluation.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>

namespace goat {

namespace {
// Least common multiple, or limit + 1 if it is above `limit`.
std::int64_t common_multiple(const std::vector<std::int64_t>& lengths, std::int64_t limit) {
  std::int64_t multiple = 1;
  for (const std::int64_t length : lengths) {
    const std::int64_t factor = length / std::gcd(multiple, length);
    if (factor > limit / multiple) return limit + 1;
    multiple *= factor;
  }
  return multiple;
}

void require_available(std::int64_t length, std::int64_t available) {
  if (length > available)
    throw DataError("the data hold " + std::to_string(available) +
                    " tokens to predict, too few for one sequence of length " + std::to_string(length) +
                    ": evaluate shorter lengths or give more data");
}

// Reads the sequences from `first` on as one micro-batch. Sequences after the end of the cut are filled with
// targets that are not counted.
void read_sequences(TokenSource& source, std::int64_t first, std::int64_t count, std::size_t length,
                    std::vector<std::int32_t>& inputs, std::vector<std::int32_t>& targets) {
  for (std::int64_t b = 0; b < count; ++b) {
    const std::size_t offset = static_cast<std::size_t>(b) * length;
    source.read(static_cast<std::uint64_t>(first + b), std::span(inputs).subspan(offset, length),
                std::span(targets).subspan(offset, length));
  }
  const auto end = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(count) * length);
  std::fill(inputs.begin() + end, inputs.end(), 0);
  std::fill(targets.begin() + end, targets.end(), -1);
}

// What a pass has computed for one sequence.
struct SequenceOutput {
  std::span<const float> losses;          // [T]
  std::span<const std::int32_t> targets;  // [T]
  TargetRange answer;
};

// Runs the share's passes and calls use(output) for each of their sequences, in order. `progress` (if given)
// as for measure_losses.
void for_each_sequence(Model& model, Device& device, TokenSource& source, Cut cut, PassShare share,
                       const std::function<void(const SequenceOutput&)>& use,
                       const std::function<void(std::int64_t)>& progress) {
  const BatchShape shape = model.shape();
  if (shape.length != cut.length)
    throw std::invalid_argument("evaluation: a model for sequences of length " +
                                std::to_string(shape.length) + ", a cut of length " +
                                std::to_string(cut.length));
  if (share.rank < 0 || share.rank >= share.size)
    throw std::invalid_argument("evaluation: rank " + std::to_string(share.rank) + " of " +
                                std::to_string(share.size));
  const auto length = static_cast<std::size_t>(cut.length);
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(shape.tokens())), targets(inputs.size());
  std::vector<float> losses(inputs.size());
  const std::int64_t passes = (cut.sequences + shape.sequences - 1) / shape.sequences;
  for (std::int64_t pass = passes * share.rank / share.size; pass < passes * (share.rank + 1) / share.size;
       ++pass) {
    const std::int64_t first = pass * shape.sequences,
                       count = std::min(shape.sequences, cut.sequences - first);
    read_sequences(source, first, count, length, inputs, targets);
    model.load(device, inputs, targets);
    model.forward(device);
    device.download(losses.data(), model.losses().data, model.losses().bytes());
    for (std::int64_t b = 0; b < count; ++b) {
      const std::size_t offset = static_cast<std::size_t>(b) * length;
      use({std::span(losses).subspan(offset, length), std::span(targets).subspan(offset, length),
           source.answer(static_cast<std::uint64_t>(first + b))});
    }
    if (progress) progress(first + count);
  }
}

void add_losses(TokenLosses& result, std::span<const float> losses, std::span<const std::int32_t> targets) {
  for (std::size_t t = 0; t < losses.size(); ++t) {
    if (targets[t] < 0) continue;
    result.sum[t] += static_cast<double>(losses[t]);
    ++result.counted[t];
  }
}

// Adds the losses of the targets in `range`.
void add_range(TargetRange range, std::span<const float> losses, std::span<const std::int32_t> targets,
               double& sum, std::int64_t& counted) {
  for (auto t = static_cast<std::size_t>(range.first); t < static_cast<std::size_t>(range.end); ++t) {
    if (targets[t] < 0) continue;
    sum += static_cast<double>(losses[t]);
    ++counted;
  }
}

void keep_losses(TokenLosses& result, std::span<const float> losses, std::span<const std::int32_t> targets) {
  for (std::size_t n = 0; n < losses.size(); ++n)
    result.per_token.push_back(targets[n] < 0 ? std::numeric_limits<float>::quiet_NaN() : losses[n]);
}

// Next bin edge after `edge`: 0, 1, 2, 3, 4, 6, 8, 12, 16, ... (powers of two and the points
// halfway between them).
std::int64_t next_edge(std::int64_t edge) {
  if (edge < 2) return edge + 1;
  return std::has_single_bit(static_cast<std::uint64_t>(edge)) ? edge / 2 * 3 : edge / 3 * 4;
}
}  // namespace

std::vector<Cut> recut(const std::vector<std::int64_t>& lengths, std::int64_t available) {
  for (const std::int64_t length : lengths) require_available(length, available);
  const std::int64_t multiple = common_multiple(lengths, available);
  if (multiple > available)
    throw DataError(
        "no " + std::to_string(available) +
        " tokens or fewer can be cut at every length without a rest: take lengths that divide the "
        "largest, or give more data");
  const std::int64_t tokens = available / multiple * multiple;
  std::vector<Cut> cuts;
  cuts.reserve(lengths.size());
  for (const std::int64_t length : lengths) cuts.push_back({length, tokens / length});
  return cuts;
}

std::vector<Cut> paper_cuts(const std::vector<std::int64_t>& lengths, std::int64_t available) {
  constexpr std::int64_t most_sequences = 100, most_tokens = 819'200;
  std::vector<Cut> cuts;
  cuts.reserve(lengths.size());
  for (const std::int64_t length : lengths) {
    require_available(length, available);
    const std::int64_t wanted = std::clamp<std::int64_t>(most_tokens / length, 1, most_sequences);
    cuts.push_back({length, std::min(wanted, available / length)});
  }
  return cuts;
}

std::vector<Cut> generated_cuts(const std::vector<std::int64_t>& lengths, std::int64_t tokens) {
  std::vector<Cut> cuts;
  cuts.reserve(lengths.size());
  for (const std::int64_t length : lengths)
    cuts.push_back({length, std::max<std::int64_t>(1, tokens / length)});
  return cuts;
}

std::int64_t TokenLosses::tokens() const {
  return std::accumulate(counted.begin(), counted.end(), std::int64_t{0});
}

double TokenLosses::nll() const {
  return std::accumulate(sum.begin(), sum.end(), 0.0) / static_cast<double>(tokens());
}

std::vector<CurveBin> TokenLosses::curve() const {
  const auto length = static_cast<std::int64_t>(sum.size());
  std::vector<CurveBin> bins;
  for (std::int64_t first = 0; first < length; first = next_edge(first)) {
    const std::int64_t end = std::min(next_edge(first), length);
    const double total = std::accumulate(sum.begin() + first, sum.begin() + end, 0.0);
    const std::int64_t targets =
        std::accumulate(counted.begin() + first, counted.begin() + end, std::int64_t{0});
    bins.push_back({first, end, total / static_cast<double>(targets)});
  }
  return bins;
}

std::int64_t sequences_per_pass(const Config& config, const DeviceInfo& device,
                                const ParameterSet& parameters, Cut cut, const PassLimits& limits) {
  MemoryPlan one;
  const Model model(config, device, {1, cut.length}, false, parameters, one);
  const auto by_memory =
      static_cast<std::int64_t>(limits.activation_bytes / one.bytes(MemoryCategory::activations));
  const std::int64_t most =
      std::clamp<std::int64_t>(std::min(limits.tokens / cut.length, by_memory), 1, cut.sequences);
  const std::int64_t passes = (cut.sequences + most - 1) / most;
  return (cut.sequences + passes - 1) / passes;
}

ForwardModel::ForwardModel(const Config& config, BatchShape shape, const ParameterSet& parameters,
                           Device& device, const std::string& advice)
    : model_(config, device.info(), shape, false, parameters, memory_) {
  memory_.add_workspace(
      device,
      [this](Device& survey) {
        model_.bind(survey);
        model_.forward(survey);
      },
      workspace_);
  memory_.allocate(device, [&] { return advice; });
  scope_.emplace(device, workspace_memory(workspace_));
  model_.bind(device);
}

TokenLosses measure_losses(Model& model, Device& device, TokenSource& source, Cut cut, bool keep_per_token,
                           const std::function<void(std::int64_t)>& progress) {
  const auto length = static_cast<std::size_t>(cut.length);
  TokenLosses result{
      .sum = std::vector<double>(length), .counted = std::vector<std::int64_t>(length), .per_token = {}};
  if (keep_per_token) result.per_token.reserve(static_cast<std::size_t>(cut.tokens()));
  const auto add = [&](const SequenceOutput& one) {
    add_losses(result, one.losses, one.targets);
    add_range(one.answer, one.losses, one.targets, result.answer_sum, result.answer_counted);
    if (keep_per_token) keep_losses(result, one.losses, one.targets);
  };
  for_each_sequence(model, device, source, cut, {}, add, progress);
  return result;
}

std::vector<SequenceLosses> measure_sequences(Model& model, Device& device, TokenSource& source, Cut cut,
                                              PassShare share) {
  std::vector<SequenceLosses> all;
  const auto add = [&](const SequenceOutput& one) {
    SequenceLosses& sums = all.emplace_back();
    add_range({0, cut.length}, one.losses, one.targets, sums.sum, sums.counted);
    add_range(one.answer, one.losses, one.targets, sums.answer_sum, sums.answer_counted);
  };
  for_each_sequence(model, device, source, cut, share, add, {});
  return all;
}

TokenLosses evaluate(const Config& config, const ParameterSet& parameters, Device& device,
                     TokenSource& source, Cut cut, bool keep_per_token, const PassLimits& limits,
                     const std::function<void(std::int64_t)>& progress) {
  ForwardModel forward(config,
                       {sequences_per_pass(config, device.info(), parameters, cut, limits), cut.length},
                       parameters, device, "Evaluate shorter lengths");
  return measure_losses(forward.model(), device, source, cut, keep_per_token, progress);
}

}  // namespace goat
