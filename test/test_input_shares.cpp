// InputRing in a run with several ranks: the shares are one rank's step, damage on one rank stops all before
// the same step, and readers may be far ahead or behind.
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "data/data_error.h"
#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/fabricated_source.h"
#include "test/rank_threads.h"
#include "train/training/input_ring.h"

using namespace goat;
using namespace goat::test;
using namespace std::chrono_literals;

namespace {

constexpr std::int64_t batch = 3, length = 5;  // sequences of a rank's share, where nothing else is said
constexpr std::int64_t ahead = InputRing::slots;

// What a rank has seen of each step.
struct SeenStep {
  std::int64_t counted;
  std::vector<std::int32_t> inputs, targets;
  std::vector<float> weights;
  bool operator==(const SeenStep&) const = default;
};

template <class Values, class Span>
void append(Values& values, const Span& span) {
  values.insert(values.end(), span.begin(), span.end());
}

SeenStep copy_of(const StepInputs& step) {
  SeenStep all{.counted = step.counted, .inputs = {}, .targets = {}, .weights = {}};
  append(all.inputs, step.inputs);
  append(all.targets, step.targets);
  append(all.weights, step.weights);
  return all;
}

// The steps from sequence 7 on, until the end or an error.
struct RankRun {
  std::vector<SeenStep> steps;
  std::exception_ptr error, again;
  bool failed_on_all = false;
  std::vector<std::uint64_t> read;
};

RankRun run_of(RankGroup& group, FabricatedSource& source, std::int64_t sequences, std::int64_t steps,
               const TokenLoss& loss) {
  const auto device = open_device("cpu");
  InputRing ring(*device, group, source, sequences, length, {.first_sequence = 7, .steps = steps}, loss);
  RankRun run;
  try {
    for (std::int64_t step = 0; step < steps; ++step) {
      run.steps.push_back(copy_of(ring.next()));
      ring.release();
    }
  } catch (const std::exception& error) {
    run.error = std::current_exception();
    run.failed_on_all = thrown_on_all_ranks(error);
    try {
      ring.next();
    } catch (...) {
      run.again = std::current_exception();
    }
  }
  run.read = source.read_so_far();
  return run;
}

// Each rank's run; `prepare` is called with its source before. The group ends well.
std::vector<RankRun> runs_of(int ranks, std::int64_t sequences, std::int64_t steps, const TokenLoss& loss,
                             const std::function<void(int, FabricatedSource&)>& prepare) {
  std::vector<RankRun> runs(static_cast<std::size_t>(ranks));
  const auto meetings = run_ranks(ranks_of(ranks), [&](RankGroup& group) {
    FabricatedSource source;
    prepare(group.rank(), source);
    runs[static_cast<std::size_t>(group.rank())] = run_of(group, source, sequences, steps, loss);
    group.finish();
  });
  for (const Meeting& meeting : meetings) CHECK(meeting.error + meeting.said == "");
  return runs;
}

std::string text_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const DataError& data_error) {
    return std::string("DataError ") + data_error.what();
  } catch (const std::runtime_error& runtime_error) {
    return std::string("runtime_error ") + runtime_error.what();
  } catch (const std::exception& other) {
    return std::string("another ") + other.what();
  }
  return "none";
}

std::string name_of_rank(int rank) {
  Peer peer = own_peer();
  peer.rank = rank;
  return name_of(peer);
}

// Rank 1's share of the first step is read, that of the second one not before `opened`.
void read_one_step(FabricatedSource& source, const std::shared_future<void>& opened) {
  source.failure = [opened](std::uint64_t index) {
    if (index >= 3 * batch) opened.wait();
  };
}

}  // namespace

TEST_CASE("input shares: the shares of all ranks are the step of one rank, and so are their weights") {
  const char* loss = GENERATE("mean", "span", "mixed");
  const auto [ranks, sequences] =
      GENERATE(std::pair(1, 12), std::pair(2, 12), std::pair(3, 12), std::pair(4, 12),
               std::pair(4, 4));  // 4, 4: shares without targets
  INFO(loss << ", " << ranks << " ranks, " << sequences << " sequences");
  constexpr std::int64_t steps = 7;
  const auto nothing = [](int, FabricatedSource&) {};
  const RankRun one = runs_of(1, sequences, steps, loss_of(loss, 10), nothing).front();
  REQUIRE(one.steps.size() == steps);
  const std::vector<RankRun> runs = runs_of(ranks, sequences, steps, loss_of(loss, 10), nothing);
  std::vector<std::uint64_t> read;
  for (std::size_t step = 0; step < steps; ++step) {
    SeenStep all{.counted = one.steps[step].counted, .inputs = {}, .targets = {}, .weights = {}};
    for (const RankRun& run : runs) {
      REQUIRE(run.steps.size() == steps);
      const SeenStep& share = run.steps[step];
      CHECK(share.counted == all.counted);
      CHECK(std::ssize(share.inputs) == sequences / ranks * length);
      append(all.inputs, share.inputs);
      append(all.targets, share.targets);
      append(all.weights, share.weights);
      const std::int64_t each = sequences / ranks;
      const auto first = run.read.begin() + static_cast<std::int64_t>(step) * each;
      read.insert(read.end(), first, first + each);
    }
    CHECK(all == one.steps[step]);
  }
  CHECK(read == one.read);
}

// Sequences 19 .. 24 are those of step 2, two a rank.
TEST_CASE("input shares: damage on one rank stops all before the same step, naming the rank") {
  const int culprit = GENERATE(0, 1, 2);
  const auto runs = runs_of(3, 6, 5, TokenLoss(), [culprit](int, FabricatedSource& source) {
    source.failure = [culprit](std::uint64_t index) {
      if (index == 20 + 2 * static_cast<std::uint64_t>(culprit)) throw DataError("a.bin is damaged");
    };
  });
  for (int rank = 0; rank < 3; ++rank) {
    const RankRun& run = runs[static_cast<std::size_t>(rank)];
    CHECK(run.steps.size() == 2);
    CHECK(text_of(run.error) == "DataError " + name_of_rank(culprit) + ": a.bin is damaged");
    CHECK(run.again == run.error);
    CHECK(run.failed_on_all);
  }
}

TEST_CASE("input shares: of several ranks with errors the first counts on all") {
  const auto runs = runs_of(4, 8, 5, TokenLoss(), [](int rank, FabricatedSource& source) {
    if (rank == 1) source.failure = [](std::uint64_t) { throw std::bad_alloc(); };
    if (rank == 2) source.failure = [](std::uint64_t) { throw DataError("damaged"); };
    if (rank == 3) source.failure = [](std::uint64_t) { throw 7; };
  });
  const std::string first = "runtime_error " + name_of_rank(1) + ": " + std::bad_alloc().what();
  for (const RankRun& run : runs) {
    CHECK(text_of(run.error) == first);
    CHECK(run.steps.empty());
  }
}

TEST_CASE("input shares: a rank's long message is cut between two characters") {
  for (const std::size_t before : {0u, 1u}) {
    std::string message(before, 'x');
    for (int i = 0; i < 4000; ++i) message += "\u00e4";
    const auto runs = runs_of(2, 2, 1, TokenLoss(), [&](int rank, FabricatedSource& source) {
      if (rank == 1) source.failure = [&](std::uint64_t) { throw DataError(message); };
    });
    const std::string start = "DataError " + name_of_rank(1) + ": ";
    const std::size_t fit = most_posted - 2 + before;  // of most_posted - 1
    for (const RankRun& run : runs) CHECK(text_of(run.error) == start + message.substr(0, fit));
  }
}

TEST_CASE(
    "input shares: a step without a target that counts on any rank is refused by all, as one rank does") {
  const char* loss = GENERATE("mean", "span");
  const auto runs =
      runs_of(3, 6, 2, loss_of(loss, 10), [](int, FabricatedSource& source) { source.counts = false; });
  for (const RankRun& run : runs) {
    CHECK_THAT(text_of(run.error), ContainsSubstring("DataError training sequences 7 to 12 have no target"));
    CHECK(run.again == run.error);
  }
}

TEST_CASE("input shares: a rank whose reader is ahead waits for the others, and the time counts") {
  std::vector<InputRing::Waiting> waiting(2);
  bool early = true;
  std::int64_t ahead_by = 0;
  FabricatedSource sources[2];
  sources[1].failure = [](std::uint64_t) { std::this_thread::sleep_for(4ms); };  // 12 ms a step
  sources[1].set_open(false);
  const auto meetings = run_ranks(ranks_of(2), [&](RankGroup& group) {
    const auto device = open_device("cpu");
    FabricatedSource& source = sources[group.rank()];
    InputRing ring(*device, group, source, 2 * batch, length, {.first_sequence = 1, .steps = 5});
    std::future<void> first = std::async(std::launch::async, [&] { ring.next(); });
    if (group.rank() == 0) {
      if (source.await_reads(ahead * batch)) ahead_by = ahead;
      early = first.wait_for(30ms) != std::future_status::timeout;
    }
    group.gather("rank 0 has waited", "");
    if (group.rank() == 1) source.set_open(true);
    first.get();
    for (int step = 1; step < 5; ++step) {
      ring.release();
      ring.next();
    }
    waiting[static_cast<std::size_t>(group.rank())] = ring.waiting();
    group.finish();
  });
  for (const Meeting& meeting : meetings) CHECK(meeting.error + meeting.said == "");
  CHECK(ahead_by == ahead);
  CHECK_FALSE(early);
  CHECK(waiting[0].steps >= 3);
  CHECK(waiting[0].seconds >= 0.9 * 3 * 0.012);
}

TEST_CASE("input shares: it may end while the readers of other ranks are behind") {
  std::promise<void> open;
  const std::shared_future<void> opened = open.get_future().share();
  const auto meetings = run_ranks(ranks_of(2), [&](RankGroup& group) {
    const auto device = open_device("cpu");
    FabricatedSource source;
    if (group.rank() == 1) read_one_step(source, opened);
    {
      InputRing ring(*device, group, source, 2 * batch, length, {.first_sequence = 0, .steps = 100});
      ring.next();
      if (group.rank() == 0) source.await_reads(ahead * batch);
    }
    if (group.rank() == 0) open.set_value();  // not before its ring has ended
    group.finish();
  });
  for (const Meeting& meeting : meetings) CHECK(meeting.error + meeting.said == "");
}

TEST_CASE("input shares: a run that fails ends the wait for the readers of other ranks") {
  std::promise<void> open;
  const std::shared_future<void> opened = open.get_future().share();
  const auto meetings = run_ranks(ranks_of(2), [&](RankGroup& group) {
    const auto device = open_device("cpu");
    FabricatedSource source;
    if (group.rank() == 1) read_one_step(source, opened);
    InputRing ring(*device, group, source, 2 * batch, length, {.first_sequence = 0, .steps = 100});
    ring.next();
    if (group.rank() == 0) {
      ring.next();
    } else {
      std::this_thread::sleep_for(30ms);
      group.fail("the disk is gone", 3);
      open.set_value();
    }
  });
  CHECK_THAT(meetings[0].error, ContainsSubstring("the disk is gone"));
}

TEST_CASE("input shares: ranks that are not at the same step are told so, and an uneven batch is refused") {
  const auto device = open_device("cpu");
  FabricatedSource source;
  RankGroup group(Launch{}, {});
  {
    InputRing ring(*device, group, source, batch, length, {.first_sequence = 1, .steps = 3});
    ring.next();
    REQUIRE(source.await_reads(ahead * batch));
  }
  InputRing second(*device, group, source, batch, length, {.first_sequence = 1, .steps = 3});
  CHECK_THROWS_WITH(second.next(),
                    ContainsSubstring("is at the step from sequence 4, this rank at that from 1"));
  CHECK_THROWS_AS(second.next(), std::logic_error);

  const auto meetings = run_ranks(ranks_of(2), [&](RankGroup& pair) {
    pair.gather("two ranks", "");
    const auto own = open_device("cpu");
    try {
      InputRing(*own, pair, source, 3, length, {.first_sequence = 0, .steps = 1});
    } catch (const std::invalid_argument& error) {
      pair.finish();
      throw;
    }
  });
  for (const Meeting& meeting : meetings)
    CHECK_THAT(meeting.error, ContainsSubstring("3 sequences a step for 2 ranks"));
}
