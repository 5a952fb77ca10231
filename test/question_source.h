// A source with answers of several lengths, and targets that do not count.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>

#include "data/token_source.h"
#include "test/operand.h"

namespace goat::test {

// Random tokens. The answer of sequence i are 0 to 4 targets from 2 on, and every third target of a sequence
// does not count.
class QuestionSource final : public TokenSource {
 public:
  std::string description() const override { return "questions"; }
  std::uint64_t sequences() const override { return endless; }
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override {
    Rng rng(index);
    std::uniform_int_distribution<std::int32_t> token(0, 10);
    for (std::size_t t = 0; t < inputs.size(); ++t) {
      inputs[t] = token(rng);
      targets[t] = (t + index) % 3 == 0 ? -1 : token(rng);
    }
  }
  TargetRange answer(std::uint64_t index) const override {
    return {2, 2 + static_cast<std::int64_t>(index % 5)};
  }
};

}  // namespace goat::test
