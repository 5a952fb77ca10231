// InputRing: the steps' inputs in order and unharmed while they are held, the shares of several ranks,
// failures at their step, and an end at any time.
#include "train/training/input_ring.h"

#include <chrono>
#include <future>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/fabricated_source.h"
#include "test/rank_threads.h"
#include "train/training/training_log.h"

using namespace goat;
using namespace goat::test;
using namespace std::chrono_literals;

namespace {

constexpr std::int64_t batch = 3, length = 5;
constexpr std::int64_t ahead = InputRing::slots;

std::vector<float> weights_of(const StepInputs& step) { return {step.weights.begin(), step.weights.end()}; }

// Of the mean loss.
void check_step(const StepInputs& step, std::int64_t first_sequence) {
  INFO("step from sequence " << first_sequence);
  std::vector<std::int32_t> inputs, targets;
  std::int64_t counted = 0;
  for (const std::uint64_t sequence : numbers(static_cast<std::uint64_t>(first_sequence), batch))
    for (std::size_t t = 0; t < static_cast<std::size_t>(length); ++t) {
      inputs.push_back(input_at(sequence, t));
      targets.push_back(target_at(sequence, t));
      counted += targets.back() >= 0;
    }
  CHECK(std::vector(step.inputs.begin(), step.inputs.end()) == inputs);
  CHECK(std::vector(step.targets.begin(), step.targets.end()) == targets);
  CHECK(step.counted == counted);
  CHECK(weights_of(step) == std::vector<float>(batch * length, 1.0f / static_cast<float>(counted)));
}

// The steps `first` .. `last` - 1 of a run from sequence `start`, each released at once.
void check_steps(InputRing& ring, FabricatedSource& source, std::int64_t start, std::int64_t first,
                 std::int64_t last) {
  for (std::int64_t step = first; step < last; ++step) {
    if (step > 0) REQUIRE(source.await_reads((step + 1) * batch));
    check_step(ring.next(), start + step * batch);
    ring.release();
  }
}

}  // namespace

TEST_CASE("input ring: every step of the run in order, each sequence read once, and no more") {
  const auto device = open_device("cpu");
  FabricatedSource source;
  LoneRing ring(*device, source, batch, length, {.first_sequence = 7, .steps = 11});
  CHECK(source.read_so_far().empty());
  check_steps(ring, source, 7, 0, 11);
  CHECK_THROWS_AS(ring.next(), std::logic_error);
  CHECK(source.read_so_far() == numbers(7, 11 * batch));
}

TEST_CASE("input ring: steps that are held are not overwritten, and each release lets one more be read") {
  const auto device = open_device("cpu");
  FabricatedSource source;
  LoneRing ring(*device, source, batch, length, {.first_sequence = 0, .steps = 9});
  std::vector<const StepInputs*> held;
  for (std::int64_t step = 0; step < ahead; ++step) {
    if (step > 0) REQUIRE(source.await_reads((step + 1) * batch));
    held.push_back(&ring.next());
  }
  for (std::int64_t released = 0; released < 3; ++released) {
    std::this_thread::sleep_for(30ms);  // for a reader that goes on though it must not
    CHECK(source.read_so_far() == numbers(0, (ahead + released) * batch));
    for (std::int64_t step = released; step < ahead; ++step)
      check_step(*held[static_cast<std::size_t>(step)], step * batch);
    ring.release();
    REQUIRE(source.await_reads((ahead + released + 1) * batch));
  }
  check_steps(ring, source, 0, ahead, ahead + 3);
}

TEST_CASE("input ring: what the source throws comes at its step, after all before it, and again") {
  const auto device = open_device("cpu");
  for (const std::uint64_t fatal : {0u, 2u, 3u, 13u, 17u}) {
    INFO("sequence " << fatal);
    FabricatedSource source;
    source.failure = [&](std::uint64_t index) {
      if (index == fatal) throw DataError("planted failure");
      if (index > fatal) throw std::bad_alloc();
    };
    LoneRing ring(*device, source, batch, length, {.first_sequence = 0, .steps = 6});
    check_steps(ring, source, 0, 0, static_cast<std::int64_t>(fatal) / batch);
    for (int again = 0; again < 3; ++again) CHECK_THROWS_WITH(ring.next(), "planted failure");
    CHECK_THROWS_AS(ring.next(), DataError);
    std::this_thread::sleep_for(30ms);  // for a reader that goes on though it must not
    CHECK(source.read_so_far() == numbers(0, static_cast<std::int64_t>(fatal) + 1));
  }
}

TEST_CASE("input ring: an exception keeps its type") {
  const auto device = open_device("cpu");
  FabricatedSource source;
  source.failure = [](std::uint64_t) { throw std::bad_alloc(); };
  LoneRing ring(*device, source, batch, length, {.first_sequence = 0, .steps = 1});
  CHECK_THROWS_AS(ring.next(), std::bad_alloc);
}

TEST_CASE("input ring: a step none of whose targets counts is refused, naming its sequences") {
  const auto device = open_device("cpu");
  FabricatedSource source;
  source.counts = false;
  LoneRing ring(*device, source, batch, length, {.first_sequence = 12, .steps = 4});
  for (int again = 0; again < 2; ++again)
    CHECK_THROWS_WITH(ring.next(), ContainsSubstring("training sequences 12 to 14"));
}

// Sequences 6, 7, 8 have 2, 3, 0 targets that count, and the answers 1 .. 0, 1 .. 1, 1 .. 2.
TEST_CASE("input ring: span and mixed weigh the answers over the whole step, and only what is in them") {
  const auto device = open_device("cpu");
  for (const double span_weight : {10.0, 0.25}) {
    FabricatedSource span_source, mixed_source;
    LoneRing span(*device, span_source, batch, length, {.first_sequence = 6, .steps = 1},
                  loss_of("span", span_weight)),
        mixed(*device, mixed_source, batch, length, {.first_sequence = 6, .steps = 1},
              loss_of("mixed", span_weight));
    const auto mean = static_cast<float>(1 / (1 + span_weight) / 5),
               with_span = static_cast<float>(1 / (1 + span_weight) / 5 + span_weight / (1 + span_weight));
    std::vector<float> want_span(batch * length, 0), want_mixed(batch * length, mean);
    for (const std::size_t n : {length + 1, 2 * length + 1, 2 * length + 2}) {
      want_span[n] = 1;  // one of them counts: target 1 of sequence 7
      want_mixed[n] = with_span;
    }
    CHECK(weights_of(span.next()) == want_span);
    const std::vector<float> got = weights_of(mixed.next());
    for (std::size_t n = 0; n < got.size(); ++n) CHECK(got[n] == Approx(want_mixed[n]).epsilon(1e-6));
  }
}

TEST_CASE("input ring: a step without a target in an answer is refused where the loss needs answers") {
  const auto device = open_device("cpu");
  for (const char* loss : {"span", "mixed"}) {
    FabricatedSource source;
    source.answers = false;
    LoneRing ring(*device, source, batch, length, {.first_sequence = 6, .steps = 1}, loss_of(loss, 10));
    CHECK_THROWS_WITH(ring.next(), ContainsSubstring("sequences 6 to 8 have no target in an answer"));
  }
}

TEST_CASE("input ring: steps that are read in time are not waited for, nor does the first one count") {
  const auto device = open_device("cpu");
  FabricatedSource source;
  LoneRing ring(*device, source, batch, length, {.first_sequence = 0, .steps = 8}, loss_of("mean", 10));
  ring.next();
  for (std::int64_t step = 1; step < 6; ++step) {
    REQUIRE(source.await_reads((step + 1) * batch + 1));  // the step after this one has begun
    ring.next();
    ring.release();
  }
  CHECK(ring.waiting().steps == 0);
  CHECK(ring.waiting().seconds == 0);
}

TEST_CASE("input ring: the time spent waiting for a slow source is counted, and the steps that waited") {
  const auto device = open_device("cpu");
  FabricatedSource source;
  source.failure = [](std::uint64_t) { std::this_thread::sleep_for(4ms); };  // 12 ms a step
  LoneRing ring(*device, source, batch, length, {.first_sequence = 0, .steps = 5}, loss_of("mean", 10));
  const auto start = std::chrono::steady_clock::now();
  ring.next();
  const auto first = std::chrono::steady_clock::now();
  for (std::int64_t step = 1; step < 5; ++step) {
    ring.release();
    ring.next();
    CHECK(ring.waiting().steps == step);
  }
  const std::chrono::duration<double> after = std::chrono::steady_clock::now() - first;
  CHECK(first - start >= 12ms);
  CHECK(ring.waiting().seconds <= after.count());
  CHECK(ring.waiting().seconds >= 0.9 * 4 * 0.012);
}

TEST_CASE("waiting for data is told where it is worth a second and a hundredth of the time") {
  const std::string note = waiting_note({.seconds = 12, .steps = 40}, 150);
  CHECK_THAT(note, ContainsSubstring("waited 12 s") && ContainsSubstring("8 % of the time") &&
                       ContainsSubstring("40 steps") && ContainsSubstring("faster disk"));
  CHECK_FALSE(waiting_note({.seconds = 1, .steps = 1}, 100).empty());
  CHECK(waiting_note({.seconds = 0.99, .steps = 1}, 2).empty());
  CHECK(waiting_note({.seconds = 1, .steps = 1}, 101).empty());
  CHECK(waiting_note({}, 0).empty());
}

TEST_CASE("input ring: a run without steps left has none") {
  const auto device = open_device("cpu");
  for (const std::int64_t steps : {0, -1}) {
    FabricatedSource source;
    LoneRing ring(*device, source, batch, length, {.first_sequence = 0, .steps = steps});
    CHECK_THROWS_AS(ring.next(), std::logic_error);
    CHECK(source.read_so_far().empty());
  }
}

TEST_CASE("input ring: it may end before it starts, and while its reader waits for a slot") {
  const auto device = open_device("cpu");
  for (const std::int64_t taken : {0, 1, 2}) {
    FabricatedSource source;
    {
      LoneRing ring(*device, source, batch, length, {.first_sequence = 0, .steps = 100});
      for (std::int64_t step = 0; step < taken; ++step) ring.next();
      if (taken > 0) REQUIRE(source.await_reads(ahead * batch));
    }
    CHECK(std::ssize(source.read_so_far()) == (taken > 0 ? ahead * batch : 0));
  }
}

TEST_CASE("input ring: an end while it reads waits for the step that is read, and starts no other") {
  const auto device = open_device("cpu");
  FabricatedSource source;
  auto ring = std::make_optional<LoneRing>(*device, source, batch, length, InputRing::Range{0, 100});
  ring->next();
  REQUIRE(source.await_reads(ahead * batch));
  source.set_open(false);
  ring->release();
  REQUIRE(source.await_reads(ahead * batch + 1));
  const auto ended = std::async(std::launch::async, [&] { ring.reset(); });
  CHECK(ended.wait_for(30ms) == std::future_status::timeout);
  source.set_open(true);
  REQUIRE(ended.wait_for(20s) == std::future_status::ready);
  CHECK(source.read_so_far() == numbers(0, (ahead + 1) * batch));
}

TEST_CASE("input ring: weights that are the same in every step are written once, others in each step") {
  const auto device = open_device("cpu");
  struct Case {
    const char* loss;
    bool masked, written;
  };
  for (const auto& [loss, masked, written] :
       {Case{"mean", false, false}, Case{"mean", true, true}, Case{"mixed", false, true}}) {
    INFO(loss << (masked ? ", masked" : ""));
    FabricatedSource source;
    source.masked = masked;
    LoneRing ring(*device, source, batch, length, {.first_sequence = 1, .steps = 2 * ahead},
                  loss_of(loss, 10));
    const float mark = 42;
    for (std::int64_t step = 0; step < 2 * ahead; ++step) {
      const float found = std::exchange(ring.next().weights[0], mark);
      if (step >= ahead) CHECK((found != mark) == written);
      ring.release();
    }
  }
}

TEST_CASE("input ring: a run with one rank has one thread more and no connection") {
  const auto device = open_device("cpu");
  FabricatedSource source;
  const auto before = threads_and_sockets();
  LoneRing ring(*device, source, batch, length, {.first_sequence = 1, .steps = 9});
  CHECK(threads_and_sockets().first <= before.first);
  check_steps(ring, source, 1, 0, 4);
  const auto after = threads_and_sockets();
  CHECK(after.first <= before.first + 1);
  CHECK(after.second == before.second);
}
