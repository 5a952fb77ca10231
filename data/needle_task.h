// NeedleTask: the built-in retrieval tasks, which need no download: passkey and a needle in a haystack
// (niah). A short text is hidden in a long one, and at the end the sample asks for it.
#pragma once

#include <string_view>

#include "data/token_source.h"

namespace goat {

// The characters of these tasks, in the order of their ids: task_alphabet[k] has the id k + 3. The ids 0, 1
// and 2 are <pad>, <bos> and <eos>, which no sample holds.
inline constexpr std::string_view task_alphabet =
    "abcdefghijklmnopqrstuvwxyz"
    "0123456789"
    " :;,.?+-_=/'\"[](){}<>#@!$%^&*|\\";
inline constexpr std::int32_t task_special_ids = 3;
inline constexpr std::int64_t task_vocab = task_special_ids + std::int64_t{task_alphabet.size()};
static_assert(task_vocab == 70);

// A sample is the text
//   opening  filler[0 .. p)  label  answer  ' '  filler[p ..)  question  answer
// whose filler and answer are uniform over their characters, and p = floor(depth * length of the filler).
struct NeedleForm {
  std::string_view name, opening, filler, label, answer, question;

  // Shortest T whose samples have a character of filler.
  std::int64_t shortest(std::int64_t answer_length) const;
};

enum class NeedleKind { passkey, niah };
const NeedleForm& needle_form(NeedleKind kind);

struct NeedleTaskOptions {
  NeedleKind kind = NeedleKind::passkey;
  std::int64_t seq_len = 1024;     // T
  std::int64_t answer_length = 8;  // characters
  double min_depth = 0;            // the depth is uniform between these
  double max_depth = 0.8;
  std::uint64_t seed = 0;
  bool validation = false;  // draws other samples than training
};

// A sample has T + 1 characters. Its inputs are the first T, its targets the last T; the answer is the last
// `answer_length` targets.
//
// Sample `index` draws words of the blocks philox(seed, stream, item, block), where stream is that of the
// task and item is `index`, with its top bit set for validation. A word w stands for u = w / 2^32, computed
// in double:
//   depth:          word 0 of block 0:                 min_depth + u * (max_depth - min_depth)
//   answer[k]:      word k % 4 of block 1 + k / 4:     character floor(u * n) of the n allowed
//   filler[k]:      word k % 4 of block 2^31 + k / 4:  the same
// So the answer does not depend on T and on the depths, and a longer filler begins as a shorter one.
class NeedleTask final : public TokenSource {
 public:
  // Throws std::invalid_argument unless T >= shortest(answer_length), answer_length >= 1 and
  // 0 <= min_depth <= max_depth <= 1.
  explicit NeedleTask(const NeedleTaskOptions& options);

  std::string description() const override;
  std::uint64_t sequences() const override { return endless; }
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override;
  TargetRange answer(std::uint64_t index) const override;

 private:
  NeedleTaskOptions options_;
  const NeedleForm& form_;
};

}  // namespace goat
