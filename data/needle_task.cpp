#include "data/needle_task.h"

#include <array>
#include <sstream>
#include <stdexcept>

#include "kernels/philox.h"

namespace goat {
namespace {

constexpr std::string_view letters = task_alphabet.substr(0, 26), digits = task_alphabet.substr(26, 10);
constexpr NeedleForm passkey{.name = "passkey",
                             .opening = " system log: ",
                             .filler = "abcdefghijklmnopqrstuvwxyz ",
                             .label = "passkey: ",
                             .answer = digits,
                             .question = " q: what is the passkey? a: "};
constexpr NeedleForm niah{.name = "niah",
                          .opening = " doc: ",
                          .filler = "abcd ",
                          .label = "needle: ",
                          .answer = letters.substr(0, 4),
                          .question = " q: what is the needle? a: "};

constexpr std::array<std::int32_t, 256> ids_of_characters() {
  std::array<std::int32_t, 256> ids{};
  for (std::size_t k = 0; k < task_alphabet.size(); ++k)
    ids[static_cast<unsigned char>(task_alphabet[k])] = task_special_ids + static_cast<std::int32_t>(k);
  return ids;
}

// Characters beside the filler.
std::int64_t fixed_characters(const NeedleForm& form, std::int64_t answer_length) {
  return std::ssize(form.opening) + std::ssize(form.label) + std::ssize(form.question) + 1 +
         2 * answer_length;
}

// `count` characters out of `allowed`, from the words of the blocks from `block` on.
std::string drawn(std::string_view allowed, std::size_t count, const auto& draw, std::uint32_t block) {
  std::string text;
  text.reserve(count + 3);
  while (text.size() < count)
    for (const std::uint32_t word : draw(block++))
      text += allowed[static_cast<std::size_t>(uniform(word) * static_cast<double>(allowed.size()))];
  text.resize(count);
  return text;
}

}  // namespace

const NeedleForm& needle_form(NeedleKind kind) { return kind == NeedleKind::passkey ? passkey : niah; }

// T + 1 characters, one of them filler.
std::int64_t NeedleForm::shortest(std::int64_t answer_length) const {
  return fixed_characters(*this, answer_length);
}

NeedleTask::NeedleTask(const NeedleTaskOptions& options)
    : options_(options), form_(needle_form(options.kind)) {
  const bool valid = options.answer_length >= 1 && options.min_depth >= 0 &&
                     options.min_depth <= options.max_depth && options.max_depth <= 1;
  if (!valid)
    throw std::invalid_argument(
        "an answer of 1 character or more and 0 <= least depth <= greatest depth <= 1 must hold; found " +
        description());
  const std::int64_t shortest = form_.shortest(options.answer_length);
  if (options.seq_len < shortest)
    throw std::invalid_argument("too short for " + std::string(form_.name) + " with answers of " +
                                std::to_string(options.answer_length) + " characters: it takes at least " +
                                std::to_string(shortest) + " tokens; found " + description());
}

std::string NeedleTask::description() const {
  std::ostringstream text;
  text << form_.name << ", " << (options_.validation ? "validation" : "training") << ": seq_len "
       << options_.seq_len << ", answers of " << options_.answer_length << " characters, depth "
       << options_.min_depth;
  if (options_.max_depth != options_.min_depth) text << " to " << options_.max_depth;
  text << ", seed " << options_.seed;
  return text.str();
}

TargetRange NeedleTask::answer(std::uint64_t) const {
  return {.first = options_.seq_len - options_.answer_length, .end = options_.seq_len};
}

void NeedleTask::read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
  require_length("NeedleTask", options_.seq_len, inputs, targets);
  const auto length = static_cast<std::size_t>(options_.seq_len);
  const RandomStream stream =
      options_.kind == NeedleKind::passkey ? RandomStream::passkey : RandomStream::niah;
  const std::uint64_t item = index | (options_.validation ? std::uint64_t{1} << 63 : 0);
  const auto draw = [&](std::uint32_t block) { return philox(options_.seed, stream, item, block); };

  const auto answer_length = static_cast<std::size_t>(options_.answer_length),
             fixed = static_cast<std::size_t>(fixed_characters(form_, options_.answer_length));
  const std::string answer = drawn(form_.answer, answer_length, draw, 1),
                    filler = drawn(form_.filler, length + 1 - fixed, draw, std::uint32_t{1} << 31);
  const double depth = options_.min_depth + uniform(draw(0)[0]) * (options_.max_depth - options_.min_depth);
  const auto split = static_cast<std::size_t>(depth * static_cast<double>(filler.size()));
  std::string sample(form_.opening);
  sample.append(filler, 0, split).append(form_.label).append(answer).append(" ");
  sample.append(filler, split).append(form_.question).append(answer);

  static constexpr std::array<std::int32_t, 256> ids = ids_of_characters();
  for (std::size_t i = 0; i < length; ++i) {
    inputs[i] = ids[static_cast<unsigned char>(sample[i])];
    targets[i] = ids[static_cast<unsigned char>(sample[i + 1])];
  }
}

}  // namespace goat
