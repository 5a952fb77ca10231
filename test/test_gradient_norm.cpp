// The step's loss and the norm of its gradients against a float64 oracle, and the rules of a skipped update.
#include <cmath>
#include <deque>
#include <limits>
#include <random>

#include "test/catch.h"
#include "test/operand.h"
#include "test/step_state.h"
#include "test/tested_device.h"

using goat::AddLoss;
using goat::GradientNorm;
using goat::StepState;
using goat::Tensor;
using goat::test::after_norm;
using goat::test::fresh_state;
using goat::test::Operand;
using goat::test::Rng;
using goat::test::State;

namespace {
using Values = std::vector<double>;
constexpr double infinity = std::numeric_limits<double>::infinity();

// Whether no float is nearer to `want`. Sums of n squares in double, in another order, differ by about
// sqrt(n) 2^-53, far below a millionth of a float's spacing: so near to a tie, either float is right.
bool is_nearest_float(float got, double want) {
  return std::abs(got - want) <= std::ldexp(0.5 + 1e-6, std::ilogb(want) - 23);
}
}  // namespace

TEST_CASE("add loss: adds the weighted sum of the losses to the step's loss") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    for (const std::int64_t n : {0, 1, 7, 4099}) {
      for (const bool weighted : {false, true}) {
        INFO("N = " << n << (weighted ? ", weighted" : ""));
        const State state(*device, fresh_state());
        const auto losses = Operand::normal(*device, rng, {n}, "losses"),
                   weights = Operand::normal(*device, rng, {n}, "weights");
        device->run(AddLoss{state.pointer(), losses, weighted ? weights.tensor() : Tensor{}, 0.125f});
        const Values loss = losses.values(), weight = weights.values();
        double want = fresh_state().loss, terms = want;
        for (std::size_t i = 0; i < loss.size(); ++i) {
          const double term = 0.125 * loss[i] * (weighted ? weight[i] : 1);
          want += term;
          terms += std::abs(term);
        }
        CHECK_FP32(Values{state.get().loss}, Values{want}, Values{terms});
        CHECK(state.get().updates == 0);
      }
    }
  }
}

TEST_CASE("gradient norm: is the 2-norm over all gradients, whatever their shapes and sizes") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    const auto big = Operand::normal(*device, rng, {5, 3 * 16384 + 7}, "big"),
               small = Operand::normal(*device, rng, {1}, "small");
    const auto none = Operand::zeros(*device, {0, 4}, "none"),
               cube = Operand::normal(*device, rng, {3, 5, 7}, "cube", 100);
    const Tensor grads[] = {big, small, none, cube};
    const State state(*device, fresh_state());
    device->run(GradientNorm{state.pointer(), grads, 1.0f});
    double squares = 0;
    for (const Operand* grad : {&big, &small, &cube})
      for (const double value : grad->values()) squares += value * value;
    const StepState got = state.get();
    CHECK(is_nearest_float(got.grad_norm, std::sqrt(squares)));
    CHECK(got.clip_scale == Approx(1 / std::sqrt(squares)));
    CHECK(got.skip_update == 0);
    CHECK(got.updates == 1);
  }
}

TEST_CASE("gradient norm: squares neither overflow nor vanish, wherever in a gradient they stand") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::test::open_tested(name);
    INFO("device " << name);
    for (const double value : {3e25, 3e-25})
      for (const std::size_t count : {1, 8, 11, 4099}) {  // 8 are read as vectors, 1 and 3 alone
        INFO(count << " elements of " << value);
        const StepState got = after_norm(*device, fresh_state(), Values(count, value), 0);
        CHECK(got.grad_norm == Approx(value * std::sqrt(static_cast<double>(count))).epsilon(1e-6).margin(0));
        CHECK(got.skip_update == 0);
      }
  }
}

TEST_CASE("gradient norm: clips only a norm above clip, and never with clip 0 or a zero gradient") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::test::open_tested(name);
    INFO("device " << name);
    CHECK(after_norm(*device, fresh_state(), {3, 4}, 1).clip_scale == Approx(0.2));
    CHECK(after_norm(*device, fresh_state(), {3, 4}, 2).clip_scale == Approx(0.4));
    CHECK(after_norm(*device, fresh_state(), {3, 4}, 5).clip_scale == 1);
    CHECK(after_norm(*device, fresh_state(), {3, 4}, 6).clip_scale == 1);
    CHECK(after_norm(*device, fresh_state(), {3, 4}, 0).clip_scale == 1);
    CHECK(after_norm(*device, fresh_state(), {0, 0}, 1).clip_scale == 1);
    CHECK(after_norm(*device, fresh_state(), {}, 1).grad_norm == 0);
    // squares that overflow or underflow in float32
    CHECK(after_norm(*device, fresh_state(), {3e25, 4e25}, 1).grad_norm == Approx(5e25));
    CHECK(after_norm(*device, fresh_state(), {3e-25, 4e-25}, 1).grad_norm == Approx(5e-25).margin(0));
    CHECK(after_norm(*device, fresh_state(), {3e25, 4e25}, 1).skip_update == 0);
  }
}

TEST_CASE("gradient norm: a loss or gradient that is not finite skips the update, with clipping on or off") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::test::open_tested(name);
    INFO("device " << name);
    const float largest = std::numeric_limits<float>::max();
    StepState bad_loss = fresh_state();
    bad_loss.loss = std::nanf("");
    for (const float clip : {0.0f, 1.0f}) {
      for (const StepState& got : {after_norm(*device, fresh_state(), {1, std::nan("")}, clip),
                                   after_norm(*device, fresh_state(), {infinity, 1}, clip),
                                   after_norm(*device, fresh_state(), {-infinity, infinity}, clip),
                                   after_norm(*device, fresh_state(), {largest, largest}, clip),
                                   after_norm(*device, bad_loss, {1, 2}, clip)}) {
        CHECK(got.skip_update == 1);
        CHECK(got.consecutive_skips == 1);
        CHECK(got.updates == 0);
      }
    }
  }
}

TEST_CASE("gradient norm: skips in a row are counted, and an applied update ends the row") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::test::open_tested(name);
    INFO("device " << name);
    StepState state = fresh_state();
    const double nan = std::nan("");
    const std::vector<double> grads = {1, nan, nan, nan, 1, nan};
    const std::vector<int> skips = {0, 1, 2, 3, 0, 1}, updates = {1, 1, 1, 1, 2, 2};
    for (std::size_t i = 0; i < grads.size(); ++i) {
      state = after_norm(*device, state, {grads[i]}, 1);
      CHECK(state.consecutive_skips == skips[i]);
      CHECK(state.updates == updates[i]);
      CHECK(state.skip_update == (skips[i] > 0 ? 1 : 0));
    }
  }
}

TEST_CASE(
    "gradient norm: many tensors, empty ones and ones that start anywhere in memory, count each element "
    "once") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    for (const std::size_t count :
         {63, 64, 65, 128, 200, 2000}) {  // 2000 parts are more than a block has threads
      std::deque<Operand> operands;
      std::vector<Tensor> grads;
      double squares = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const auto n = static_cast<std::int64_t>(i % 7 == 3 ? 0 : i == 60 ? 70001 : rng() % 40);
        operands.push_back(Operand::normal(*device, rng, {n + 1}, "grad"));
        grads.push_back(operands.back().tensor().slice(0, static_cast<std::int64_t>(i % 2), n));
        for (const double value : goat::test::values_of(*device, grads.back())) squares += value * value;
      }
      const State state(*device, fresh_state());
      device->run(GradientNorm{state.pointer(), grads, 1.0f});
      INFO(count << " tensors");
      CHECK(is_nearest_float(state.get().grad_norm, std::sqrt(squares)));
    }
  }
}
