// Validation shared among ranks: the losses of the sequences, and the loss made of them, do not depend on the
// number of ranks.
#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/question_source.h"
#include "test/tiny_model.h"
#include "train/model/evaluation.h"
#include "train/training/token_loss.h"

using namespace goat;
using namespace goat::test::tiny_model;
using goat::test::QuestionSource;

namespace {

// Remembers which sequences were read.
class WatchedSource final : public TokenSource {
 public:
  std::string description() const override { return source_.description(); }
  std::uint64_t sequences() const override { return source_.sequences(); }
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override {
    read_.push_back(index);
    source_.read(index, inputs, targets);
  }
  TargetRange answer(std::uint64_t index) const override { return source_.answer(index); }
  std::vector<std::uint64_t> take_read() { return std::exchange(read_, {}); }

 private:
  QuestionSource source_;
  std::vector<std::uint64_t> read_;
};

constexpr std::int64_t length = 9, batch = 3;

TokenLoss loss_of(const std::string& kind) {
  return TokenLoss(tiny_config({"train.loss=" + kind, "train.span_weight=3"}).train);
}

}  // namespace

TEST_CASE(
    "pass share: the sequences of 1 to 5 ranks one after the other, and each loss of them, are bit for bit "
    "those of one rank") {
  const auto device = open_device("cpu");
  TestModel model(tiny_config(), *device, {batch, length}, goat::test::fresh_seed());
  WatchedSource source;
  // Full passes; one partly filled; as many as the ranks or fewer; one sequence.
  for (const std::int64_t sequences : {24, 20, 11, 6, 1}) {
    const Cut cut{length, sequences};
    const std::vector<SequenceLosses> whole = measure_sequences(*model.model, *device, source, cut, {});
    REQUIRE(std::ssize(whole) == sequences);
    source.take_read();
    const std::int64_t passes = (sequences + batch - 1) / batch;
    for (int size = 1; size <= 5; ++size) {
      INFO(sequences << " sequences, " << size << " ranks");
      std::vector<SequenceLosses> joined;
      for (int rank = 0; rank < size; ++rank) {
        const std::vector<SequenceLosses> part =
            measure_sequences(*model.model, *device, source, cut, {rank, size});
        std::vector<std::uint64_t> own;
        for (std::int64_t i = passes * rank / size * batch;
             i < std::min(sequences, passes * (rank + 1) / size * batch); ++i)
          own.push_back(static_cast<std::uint64_t>(i));
        CHECK(source.take_read() == own);
        REQUIRE(part.size() == own.size());
        joined.insert(joined.end(), part.begin(), part.end());
      }
      CHECK(joined == whole);
      for (const char* kind : {"mean", "span", "mixed"})
        CHECK(loss_of(kind).of(joined) == loss_of(kind).of(whole));
    }
  }
}

TEST_CASE("pass share: each sequence has the losses of its own targets, and all together those by position") {
  const auto device = open_device("cpu");
  TestModel model(tiny_config(), *device, {batch, length}, goat::test::fresh_seed());
  QuestionSource source;
  const Cut cut{length, 11};
  const TokenLosses wanted = measure_losses(*model.model, *device, source, cut, true);
  const std::vector<SequenceLosses> sequences = measure_sequences(*model.model, *device, source, cut, {});
  REQUIRE(sequences.size() == 11);
  std::int64_t counted = 0, answers = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    INFO("sequence " << s);
    SequenceLosses want;
    std::vector<std::int32_t> inputs(length), targets(length);
    source.read(s, inputs, targets);
    const TargetRange answer = source.answer(s);
    for (std::int64_t t = 0; t < length; ++t) {
      if (targets[static_cast<std::size_t>(t)] < 0) continue;
      const double loss =
          wanted.per_token[s * static_cast<std::size_t>(length) + static_cast<std::size_t>(t)];
      want.sum += loss, ++want.counted;
      if (t >= answer.first && t < answer.end) want.answer_sum += loss, ++want.answer_counted;
    }
    CHECK(sequences[s] == want);
    counted += want.counted, answers += want.answer_counted;
  }
  CHECK(counted == wanted.tokens());
  CHECK(answers == wanted.answer_counted);
  for (const char* kind : {"mean", "span", "mixed"}) {
    INFO(kind);
    CHECK(loss_of(kind).of(sequences) == Approx(loss_of(kind).of(wanted)).epsilon(1e-12));
  }
}

TEST_CASE("pass share: a rank that there is not, or sequences of another length, are refused") {
  const auto device = open_device("cpu");
  TestModel model(tiny_config(), *device, {batch, length}, 1);
  QuestionSource source;
  const auto measure = [&](Cut cut, PassShare share) {
    measure_sequences(*model.model, *device, source, cut, share);
  };
  for (const PassShare share : {PassShare{2, 2}, PassShare{-1, 2}, PassShare{0, 0}})
    CHECK_THROWS_AS(measure({length, 6}, share), std::invalid_argument);
  CHECK_THROWS_AS(measure({length - 1, 6}, {}), std::invalid_argument);
}
