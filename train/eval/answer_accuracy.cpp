#include "train/eval/answer_accuracy.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "train/memory/float_copies.h"

namespace goat {

namespace {
// The most likely tokens after the inputs first .. first + count - 1 of the latest pass.
std::vector<std::int32_t> most_likely_tokens(Model& model, Device& device, std::int64_t first,
                                             std::int64_t count, std::int64_t vocab) {
  std::vector<std::int32_t> tokens;
  std::vector<float> values;
  while (std::ssize(tokens) < count) {
    const std::int64_t done = std::ssize(tokens), rows = std::min(count - done, model.most_logit_rows());
    const Tensor logits = model.logits(device, first + done, rows);
    values.resize(static_cast<std::size_t>(logits.elements()));
    download_floats(device, values, logits);
    for (std::int64_t row = 0; row < rows; ++row)
      tokens.push_back(most_likely(std::span(values).subspan(static_cast<std::size_t>(row * logits.shape[1]),
                                                             static_cast<std::size_t>(vocab))));
  }
  return tokens;
}

void add_answer(AnswerAccuracy& accuracy, std::span<const std::int32_t> tokens,
                std::span<const std::int32_t> targets) {
  std::int64_t right = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) right += tokens[i] == targets[i];
  ++accuracy.answers;
  accuracy.right_answers += right == std::ssize(targets);
  accuracy.tokens += std::ssize(targets);
  accuracy.right_tokens += right;
}
}  // namespace

std::int32_t most_likely(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t id = 1; id < logits.size(); ++id)
    if (logits[id] > logits[best]) best = id;
  return static_cast<std::int32_t>(best);
}

AnswerAccuracy measure_answers(Model& model, Device& device, TokenSource& source, Cut cut, std::int64_t vocab,
                               const std::function<void(std::int64_t)>& progress) {
  AnswerAccuracy accuracy;
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(cut.length)), targets(inputs.size());
  std::int64_t before = 0;
  const auto after_pass = [&](std::int64_t finished) {
    const std::int64_t first = std::exchange(before, finished);
    for (std::int64_t sequence = first; sequence < finished; ++sequence) {
      const auto index = static_cast<std::uint64_t>(sequence);
      source.read(index, inputs, targets);
      const TargetRange answer = source.answer(index);
      add_answer(accuracy,
                 most_likely_tokens(model, device, (sequence - first) * cut.length + answer.first,
                                    answer.size(), vocab),
                 std::span(targets).subspan(static_cast<std::size_t>(answer.first),
                                            static_cast<std::size_t>(answer.size())));
    }
    if (progress) progress(finished);
  };
  accuracy.losses = measure_losses(model, device, source, cut, false, after_pass);
  return accuracy;
}

AnswerAccuracy evaluate_answers(const Config& config, const ParameterSet& parameters, Device& device,
                                TokenSource& source, Cut cut,
                                const std::function<void(std::int64_t)>& progress) {
  ForwardModel forward(config, {sequences_per_pass(config, device.info(), parameters, cut, {}), cut.length},
                       parameters, device, "Evaluate shorter lengths");
  return measure_answers(forward.model(), device, source, cut, config.model.vocab, progress);
}

}  // namespace goat
