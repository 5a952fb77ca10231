// The loss of a step, the squared sums of its gradients and the verdict over both: against an oracle in long
// double, bit by bit against the documented order of the additions, and the rules of a skipped update.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <random>

#include "test/catch.h"
#include "test/operand.h"
#include "test/step_state.h"
#include "test/tested_device.h"

using goat::AddLoss;
using goat::ChunkSums;
using goat::Device;
using goat::DType;
using goat::SquaredSums;
using goat::StepState;
using goat::StepVerdict;
using goat::Tensor;
using goat::test::after_verdict;
using goat::test::fresh_state;
using goat::test::Operand;
using goat::test::Rng;
using goat::test::State;

namespace {
using Index = std::int64_t;
using Values = std::vector<double>;
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr Index chunk = SquaredSums::chunk;

template <class Body>
void on_every_device(Body body) {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    body(*device, rng);
  }
}

// The sum in the order of goat::sum_lanes.
double sum_in_order(const Values& terms) {
  Values sums(1024);
  for (std::size_t i = 0; i < terms.size(); ++i) sums[i % sums.size()] += terms[i];
  while (sums.size() > 1) {
    Values halves;
    for (std::size_t i = 0; i < sums.size(); i += 2) halves.push_back(sums[i] + sums[i + 1]);
    sums = halves;
  }
  return sums[0];
}

Values products(const Values& a, const Values& b) {
  Values result(a.size());
  std::transform(a.begin(), a.end(), b.begin(), result.begin(), std::multiplies<>());
  return result;
}

// What SquaredSums gives for these elements.
Values squared_sums(const Values& x) {
  Values sums;
  for (std::size_t first = 0; first < x.size(); first += chunk) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(first);
    const Values part(begin, begin + std::min<std::ptrdiff_t>(chunk, x.end() - begin));
    sums.push_back(sum_in_order(products(part, part)));
  }
  return sums;
}

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 8) == 0);
}

// Whether `got` is the sum of the terms within the rounding of sums in double.
bool is_sum(double got, const Values& terms, long double start = 0) {
  long double sum = start, sizes = std::abs(start);
  for (const double term : terms) sum += term, sizes += std::abs(term);
  return std::abs(got - sum) <= std::ldexp(sizes, -49);
}

// Whether no float is nearer to `want`. Sums of n squares in double, in another order, differ by about
// sqrt(n) 2^-53, far below a millionth of a float's spacing: so near to a tie, either float is right.
bool is_nearest_float(float got, double want) {
  return std::abs(got - want) <= std::ldexp(0.5 + 1e-6, std::ilogb(want) - 23);
}

// Values of different sizes, so that the order of the additions shows in their rounding.
Operand uneven(Device& device, Rng& rng, std::initializer_list<Index> shape, const char* name) {
  auto operand = Operand::normal(device, rng, shape, name);
  Values values = operand.values();
  for (double& value : values) value = std::ldexp(value, static_cast<int>(rng() % 24));
  operand.set(values);
  return operand;
}

// Terms of both signs whose sum, above 0, is so much smaller than they are that the order of the additions
// shows even when it is rounded to a float. A double whose root is taken may be as well.
Values cancelling(Rng& rng, Index count) {
  std::uniform_real_distribution<double> uniform(0, 1);
  Values terms;
  for (Index i = 0; i < count; ++i) {
    const double large = std::ldexp(uniform(rng), 60);
    terms.push_back(i % 2 == 0 || i + 1 == count ? 1e5 * uniform(rng) + 1 : 0);
    if (i % 2 == 1) {
      terms[static_cast<std::size_t>(i) - 1] += large;
      terms.back() -= large;
    }
  }
  return terms;
}

// The number of the piece that a rank has. Ranks are counted node by node.
Index piece_of(Index rank, Index ranks, Index nodes) {
  const Index of_a_node = ranks / nodes, node = rank / of_a_node, local = rank % of_a_node;
  return local * nodes + node;
}

// Sums of chunks as ranks hold them: [ranks, columns] with a gap between rows, filled up with zeros.
class PaddedSums {
 public:
  PaddedSums(Device& device, Index ranks, Index nodes, const Values& sums, Index gap)
      : ranks_(ranks),
        columns_((static_cast<Index>(sums.size()) + ranks - 1) / ranks),
        memory_(device, DType::f64, {ranks, columns_ + gap}, "sums") {
    Values values(static_cast<std::size_t>(ranks * (columns_ + gap)), std::nan(""));
    for (Index r = 0; r < ranks; ++r)
      for (Index c = 0; c < columns_; ++c) {
        const auto i = static_cast<std::size_t>(piece_of(r, ranks, nodes) * columns_ + c);
        values[static_cast<std::size_t>(r * (columns_ + gap) + c)] = i < sums.size() ? sums[i] : 0.0;
      }
    memory_.set(values);
  }
  Tensor tensor() const { return memory_.tensor().slice(1, 0, columns_); }

 private:
  Index ranks_, columns_;
  Operand memory_;
};

// The verdict over losses of 1 and these sums, cut into `tensors` tensors at random places. With one node a
// tensor is on up to `ranks` ranks, with several on all.
StepState verdict_over(Device& device, Rng& rng, const Values& sums, Index tensors, Index ranks,
                       Index nodes = 1) {
  std::vector<std::size_t> borders = {0, sums.size()};
  for (Index i = 1; i < tensors; ++i) borders.push_back(rng() % (sums.size() + 1));
  std::sort(borders.begin(), borders.end());
  std::deque<PaddedSums> pieces;
  std::vector<ChunkSums> squares;
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    const auto at = [&](std::size_t border) { return sums.begin() + static_cast<std::ptrdiff_t>(border); };
    const Index rows = nodes > 1 ? ranks : 1 + static_cast<Index>(rng() % static_cast<std::uint64_t>(ranks));
    pieces.emplace_back(device, rows, nodes, Values(at(borders[i]), at(borders[i + 1])),
                        static_cast<Index>(rng() % 3));
    squares.push_back({pieces.back().tensor(), static_cast<Index>(borders[i])});
  }
  const State state(device, fresh_state());
  const auto losses =
      Operand::of(device, Values(static_cast<std::size_t>(ranks), 1.0), {ranks, 1}, "losses", DType::f64);
  device.run(StepVerdict{.state = state.pointer(),
                         .losses = losses,
                         .squares = squares,
                         .clip = 1,
                         .nodes = static_cast<int>(nodes)});
  return state.get();
}
}  // namespace

TEST_CASE("add loss: adds the weighted sum of the losses, to the bit in the documented order") {
  on_every_device([](Device& device, Rng& rng) {
    for (const Index n : {0, 1, 7, 1023, 1024, 1025, 4099})
      for (const bool weighted : {false, true}) {
        INFO("N = " << n << (weighted ? ", weighted" : ""));
        const auto losses = uneven(device, rng, {n}, "losses"),
                   weights = Operand::normal(device, rng, {n}, "weights");
        const double start = std::ldexp(1.0, static_cast<int>(rng() % 24)) / 3;
        const auto sum = Operand::of(device, {start}, {1}, "sum", DType::f64);
        const float weight = 0.3f;
        device.run(
            AddLoss{sum.tensor().as<double>(), losses, weighted ? weights.tensor() : Tensor{}, weight});
        const Values ones(static_cast<std::size_t>(n), 1.0);
        const Values terms = products(losses.values(), weighted ? weights.values() : ones);
        const double want = std::fma(static_cast<double>(weight), sum_in_order(terms), start);
        CHECK(same_bits(sum.values(), {want}));
        CHECK(is_sum(sum.values()[0], products(terms, Values(terms.size(), weight)), start));
      }
  });
}

TEST_CASE("squared sums: are those of each chunk, to the bit in the documented order, at any address") {
  on_every_device([](Device& device, Rng& rng) {
    for (const Index n : {Index{0}, Index{1}, Index{3}, Index{4}, Index{6}, Index{1023}, Index{1025},
                          Index{4099}, chunk - 1, chunk, chunk + 1, 2 * chunk + 1030})
      for (const Index shift : {0, 1, 2, 3}) {
        if (goat::test::reduced() && n > chunk + 1) continue;
        INFO("n = " << n << ", from element " << shift);
        const auto memory = uneven(device, rng, {n + 3}, "x");
        const Tensor x = memory.tensor().slice(0, shift, n);
        const Operand sums(device, DType::f64, {(n + chunk - 1) / chunk}, "sums");
        device.run(SquaredSums{sums, x});
        const Values values = goat::test::values_of(device, x), got = sums.values();
        CHECK(same_bits(got, squared_sums(values)));
        for (std::size_t i = 0; i < got.size(); ++i) {
          const auto begin = values.begin() + static_cast<std::ptrdiff_t>(i) * chunk;
          const Values part(begin, begin + std::min<std::ptrdiff_t>(chunk, values.end() - begin));
          CHECK(is_sum(got[i], products(part, part)));
        }
      }
  });
}

TEST_CASE("squared sums: of a chunk depend neither on shape, nor on its place, nor on zeros behind it") {
  on_every_device([](Device& device, Rng& rng) {
    const Index length = chunk + 2309;
    const auto x = uneven(device, rng, {length / 7, 7}, "x");
    REQUIRE(x.tensor().elements() == length);
    const Tensor flat = x.tensor().reshape({length});
    Values padded = x.values();
    padded.resize(3 * chunk);
    const auto zeros_behind = Operand::of(device, padded, {3 * chunk}, "padded");
    const Operand whole(device, DType::f64, {2}, "whole"), last(device, DType::f64, {1}, "last"),
        behind(device, DType::f64, {3}, "behind");
    device.run(SquaredSums{whole, x});
    device.run(SquaredSums{last, flat.slice(0, chunk, length - chunk)});
    device.run(SquaredSums{behind, zeros_behind});
    const Values want = whole.values();
    CHECK(same_bits(last.values(), {want[1]}));
    CHECK(same_bits(behind.values(), {want[0], want[1], 0.0}));
  });
}

TEST_CASE("squared sums: neither overflow nor vanish, and what is not finite arrives") {
  on_every_device([](Device& device, Rng&) {
    for (const double value : {3e25, 3e-25})
      for (const Index count : {1, 8, 11, 4099}) {  // 8 are read as vectors, 1 and 3 alone
        INFO(count << " elements of " << value);
        const Operand sums(device, DType::f64, {1}, "sums");
        const auto x = Operand::of(device, Values(static_cast<std::size_t>(count), value), {count}, "x");
        device.run(SquaredSums{sums, x});
        const double square = static_cast<double>(static_cast<float>(value)) * static_cast<float>(value);
        CHECK(sums.values()[0] == Approx(square * static_cast<double>(count)).epsilon(1e-14).margin(0));
      }
    for (const Index place : {Index{0}, Index{5}, chunk - 1, chunk, chunk + 2})
      for (const double value : {infinity, -infinity, std::nan("")}) {
        INFO(value << " at " << place);
        Values values(static_cast<std::size_t>(chunk + 3), 1.0);
        values[static_cast<std::size_t>(place)] = value;
        const auto x = Operand::of(device, values, {chunk + 3}, "x");
        const Operand sums(device, DType::f64, {2}, "sums");
        device.run(SquaredSums{sums, x});
        const Values got = sums.values();
        const bool first = place < chunk;
        CHECK((std::isnan(value) ? std::isnan(got[first ? 0 : 1]) : got[first ? 0 : 1] == infinity));
        CHECK(got[first ? 1 : 0] == (first ? 3.0 : static_cast<double>(chunk)));
      }
  });
}

TEST_CASE("step verdict: adds the squares of all chunks in the documented order, however they are cut") {
  on_every_device([](Device& device, Rng& rng) {
    for (const Index chunks : {1, 2, 5, 1023, 1024, 1025, 3001}) {
      const Values sums = cancelling(rng, chunks);
      const auto want = static_cast<float>(std::sqrt(sum_in_order(sums)));
      const auto check = [&](Index tensors, Index ranks) {
        INFO(chunks << " chunks in " << tensors << " tensors on up to " << ranks << " ranks");
        const StepState got = verdict_over(device, rng, sums, tensors, ranks);
        CHECK(got.grad_norm == want);
        CHECK(got.clip_scale == (want > 1 ? 1 / want : 1.0f));
      };
      check(1, 1);
      for (const Index ranks : {1, 2, 3, 8}) check(1, ranks);
      for (const Index tensors : {2, 5, 40}) check(tensors, 4);
      for (const Index tensors : {63, 64, 65, 128, 200})  // a launch takes 64
        if (chunks == 5 || chunks == 3001) check(tensors, 3);
    }
  });
}

TEST_CASE("step verdict: adds the squares in the order of the pieces, on any number of nodes") {
  on_every_device([](Device& device, Rng& rng) {
    for (const Index ranks : {1, 2, 4, 6})
      for (const Index nodes : {1, 2, 3})
        if (ranks % nodes == 0)
          for (const Index chunks : {1, 5, 1025, 3001})
            for (const Index tensors : {1, 3, 64, 65, 200}) {  // a launch takes 64
              INFO(chunks << " chunks in " << tensors << " tensors on " << ranks << " ranks of " << nodes
                          << " nodes");
              const Values sums = cancelling(rng, chunks);
              const StepState got = verdict_over(device, rng, sums, tensors, ranks, nodes);
              CHECK(got.grad_norm == static_cast<float>(std::sqrt(sum_in_order(sums))));
              CHECK(got.loss == static_cast<float>(ranks));
            }
  });
}

TEST_CASE("step verdict: the order of the chunks and of the losses shows") {
  Rng rng(goat::test::fresh_seed());
  const Values sums = cancelling(rng, 3000);
  Values other(sums.rbegin(), sums.rend());
  CHECK(static_cast<float>(sum_in_order(other)) != static_cast<float>(sum_in_order(sums)));
}

TEST_CASE("step verdict: the loss is the sum of all ranks' leaves, one after the other, on any nodes") {
  on_every_device([](Device& device, Rng& rng) {
    for (const Index count : {1, 4, 12, 96}) {
      const Values losses = cancelling(rng, count);
      double want = 0;
      for (const double loss : losses) want += loss;
      CHECK(is_sum(want, losses));
      for (const Index ranks : {1, 2, 4, 12})
        if (count % ranks == 0)
          for (const Index gap : {0, 3}) {
            const Index nodes = ranks % 4 == 0 && gap == 3 ? 2 : 1;
            INFO(count << " leaves on " << ranks << " ranks, gap " << gap << ", " << nodes << " nodes");
            const PaddedSums of_ranks(device, ranks, 1, losses, gap);
            StepState before = fresh_state();
            before.loss = std::nanf("");
            const State state(device, before);
            device.run(StepVerdict{.state = state.pointer(),
                                   .losses = of_ranks.tensor(),
                                   .squares = {},
                                   .clip = 1,
                                   .nodes = static_cast<int>(nodes)});
            const StepState got = state.get();
            CHECK(got.loss == static_cast<float>(want));
            CHECK(got.grad_norm == 0);
            CHECK(got.skip_update == 0);
            CHECK(got.learning_rate == before.learning_rate);
          }
    }
  });
}

TEST_CASE("gradient norm: has the same bits for any number of ranks that share the gradient") {
  on_every_device([](Device& device, Rng& rng) {
    const Index n = goat::test::reduced() ? 2 * chunk + 17 : 5 * chunk + 17;
    const auto grad = uneven(device, rng, {n}, "grad");
    const Values values = grad.values(), want = squared_sums(values);
    const auto norm = static_cast<float>(std::sqrt(sum_in_order(want)));
    CHECK(is_nearest_float(norm, std::sqrt(sum_in_order(products(values, values)))));
    for (const Index ranks : {1, 2, 3, 4, 8}) {
      INFO(ranks << " ranks");
      const Index columns = (static_cast<Index>(want.size()) + ranks - 1) / ranks, piece = columns * chunk;
      Values padded = values;
      padded.resize(static_cast<std::size_t>(ranks * piece));
      const auto bucket = Operand::of(device, padded, {ranks, piece}, "bucket");
      const Operand sums(device, DType::f64, {ranks, columns}, "sums");
      for (Index r = 0; r < ranks; ++r)
        device.run(SquaredSums{sums.tensor().select(0, r), bucket.tensor().select(0, r)});
      Values got = sums.values();
      CHECK(std::all_of(got.begin() + static_cast<std::ptrdiff_t>(want.size()), got.end(),
                        [](double sum) { return sum == 0 && !std::signbit(sum); }));
      got.resize(want.size());
      CHECK(same_bits(got, want));
      const State state(device, fresh_state());
      const auto loss = Operand::of(device, {1}, {1, 1}, "loss", DType::f64);
      const ChunkSums squares[] = {{sums, 0}};
      device.run(StepVerdict{state.pointer(), loss, squares, 0});
      CHECK(state.get().grad_norm == norm);
    }
  });
}

TEST_CASE("gradient norm: is the 2-norm over all gradients, whatever their number, shapes and sizes") {
  on_every_device([](Device& device, Rng& rng) {
    for (const std::size_t count : {1, 4, 65, 200}) {
      std::deque<Operand> operands;
      std::vector<Tensor> grads;
      long double squares = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const auto n = static_cast<Index>(i % 7 == 3 ? 0 : i == 2 ? 70001 : rng() % 40);
        operands.push_back(Operand::normal(device, rng, {n + 1, 3}, "grad"));
        grads.push_back(operands.back().tensor().slice(0, static_cast<Index>(i % 2), n));
        for (const double value : goat::test::values_of(device, grads.back())) squares += value * value;
      }
      INFO(count << " tensors");
      const State state(device, fresh_state());
      goat::test::judge(device, state.pointer(), 0.5, grads, 1.0f);
      const StepState got = state.get();
      CHECK(is_nearest_float(got.grad_norm, static_cast<double>(std::sqrt(squares))));
      CHECK(got.clip_scale == (got.grad_norm > 1 ? 1 / got.grad_norm : 1.0f));
      CHECK(got.loss == 0.5f);
      CHECK(got.skip_update == 0);
      CHECK(got.updates == 1);
    }
  });
}

TEST_CASE("step verdict: clips only a norm above clip, and never with clip 0 or a zero gradient") {
  on_every_device([](Device& device, Rng&) {
    CHECK(after_verdict(device, fresh_state(), {3, 4}, 1).clip_scale == Approx(0.2));
    CHECK(after_verdict(device, fresh_state(), {3, 4}, 2).clip_scale == Approx(0.4));
    CHECK(after_verdict(device, fresh_state(), {3, 4}, 5).clip_scale == 1);
    CHECK(after_verdict(device, fresh_state(), {3, 4}, 6).clip_scale == 1);
    CHECK(after_verdict(device, fresh_state(), {3, 4}, 0).clip_scale == 1);
    CHECK(after_verdict(device, fresh_state(), {0, 0}, 1).clip_scale == 1);
    CHECK(after_verdict(device, fresh_state(), {}, 1).grad_norm == 0);
    // squares that overflow or underflow in float32
    CHECK(after_verdict(device, fresh_state(), {3e25, 4e25}, 1).grad_norm == Approx(5e25));
    CHECK(after_verdict(device, fresh_state(), {3e-25, 4e-25}, 1).grad_norm == Approx(5e-25).margin(0));
    CHECK(after_verdict(device, fresh_state(), {3e25, 4e25}, 1).skip_update == 0);
  });
}

TEST_CASE("step verdict: a loss or gradient that is not finite skips the update, with clipping on or off") {
  on_every_device([](Device& device, Rng&) {
    const float largest = std::numeric_limits<float>::max();
    StepState bad_loss = fresh_state(), endless_loss = fresh_state();
    bad_loss.loss = std::nanf("");
    endless_loss.loss = -std::numeric_limits<float>::infinity();
    for (const float clip : {0.0f, 1.0f})
      for (const StepState& got : {after_verdict(device, fresh_state(), {1, std::nan("")}, clip),
                                   after_verdict(device, fresh_state(), {infinity, 1}, clip),
                                   after_verdict(device, fresh_state(), {-infinity, infinity}, clip),
                                   after_verdict(device, fresh_state(), {largest, largest}, clip),
                                   after_verdict(device, bad_loss, {1, 2}, clip),
                                   after_verdict(device, endless_loss, {1, 2}, clip)}) {
        CHECK(got.skip_update == StepState::not_finite);
        CHECK(got.consecutive_skips == 1);
        CHECK(got.updates == 0);
      }
    // a sum of losses beyond the largest float
    const State state(device, fresh_state());
    const auto losses = Operand::of(device, {1e38, 3e38}, {2, 1}, "losses", DType::f64);
    device.run(StepVerdict{state.pointer(), losses, {}, 1});
    CHECK(state.get().skip_update == StepState::not_finite);
  });
}

TEST_CASE("step verdict: a flag is the largest of all ranks; without flags all are 0") {
  on_every_device([](Device& device, Rng& rng) {
    for (const Index ranks : {1, 2, 3, 7}) {
      INFO(ranks << " ranks");
      Values rows(static_cast<std::size_t>(ranks * 5));
      for (double& value : rows) value = static_cast<double>(rng() % 3000);
      const auto table = Operand::of(device, rows, {ranks, 5}, "reports", DType::f64);
      StepState poisoned = fresh_state();
      poisoned.flags[0] = poisoned.flags[1] = -7;
      const State state(device, poisoned);
      StepVerdict op{state.pointer(), table.tensor().slice(1, 2, 1), {}, 0};
      device.run(op);
      CHECK((state.get().flags[0] == 0 && state.get().flags[1] == 0));
      op.flags = table.tensor().slice(1, 3, 2);
      device.run(op);
      for (int f = 0; f < 2; ++f) {
        double largest = 0;
        for (std::size_t r = 0; r < rows.size(); r += 5)
          largest = std::max(largest, rows[r + 3 + static_cast<std::size_t>(f)]);
        CHECK(state.get().flags[f] == static_cast<std::int32_t>(largest));
      }
    }
  });
}

TEST_CASE("step verdict: skips in a row are counted, and an applied update ends the row") {
  on_every_device([](Device& device, Rng&) {
    StepState state = fresh_state();
    const double nan = std::nan("");
    const Values grads = {1, nan, nan, nan, 1, nan};
    const std::vector<int> skips = {0, 1, 2, 3, 0, 1}, updates = {1, 1, 1, 1, 2, 2};
    for (std::size_t i = 0; i < grads.size(); ++i) {
      state = after_verdict(device, state, {grads[i]}, 1);
      CHECK(state.consecutive_skips == skips[i]);
      CHECK(state.updates == updates[i]);
      CHECK(state.skip_update == (skips[i] > 0 ? 1 : 0));
    }
  });
}
