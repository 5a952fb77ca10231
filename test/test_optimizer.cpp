// Loss, gradient norm and AdamW against a float64 oracle, and the rules of a skipped update.
#include <omp.h>

#include <cmath>
#include <limits>

#include "test/catch.h"
#include "test/operand.h"

using goat::AdamW;
using goat::AddLoss;
using goat::Device;
using goat::DeviceBuffer;
using goat::DType;
using goat::GradientNorm;
using goat::StepState;
using goat::Tensor;
using goat::test::Operand;
using goat::test::Rng;

namespace {
using Values = std::vector<double>;
constexpr double infinity = std::numeric_limits<double>::infinity();

// A StepState in device memory.
class State {
 public:
  State(Device& device, const StepState& state) : device_(&device), buffer_(device, sizeof(StepState)) { set(state); }
  void set(const StepState& state) { device_->upload(buffer_.data(), &state, sizeof state); }
  StepState get() const {
    StepState state;
    device_->download(&state, buffer_.data(), sizeof state);
    return state;
  }
  StepState* pointer() const { return static_cast<StepState*>(buffer_.data()); }

 private:
  Device* device_;
  DeviceBuffer buffer_;
};

StepState fresh_state() {
  return {.learning_rate = 1e-2f,
          .loss_limit = 0,
          .grad_norm_limit = 0,
          .loss = 1,
          .grad_norm = 0,
          .clip_scale = 1,
          .skip_update = 0,
          .consecutive_skips = 0,
          .updates = 0};
}

// The state after GradientNorm over one gradient.
StepState after_norm(Device& device, const StepState& before, const Values& grad, float clip) {
  const State state(device, before);
  const auto operand = Operand::of(device, grad, {static_cast<std::int64_t>(grad.size())}, "grad");
  const Tensor grads[] = {operand};
  device.run(GradientNorm{state.pointer(), grads, clip});
  return state.get();
}

struct Moments {
  Values weights, m, v;
  Values weights_terms, m_terms;  // sums of the absolute values of the terms added up so far
};

Moments moments(const Values& weights) {
  const Values zeros(weights.size());
  Moments start{weights, zeros, zeros, weights, zeros};
  for (double& term : start.weights_terms) term = std::abs(term);
  return start;
}

void adamw_oracle(Moments& a, const Values& grad, const StepState& state, const AdamW& op) {
  const double beta1 = op.beta1, beta2 = op.beta2, t = static_cast<double>(state.updates), lr = state.learning_rate;
  for (std::size_t i = 0; i < grad.size(); ++i) {
    const double g = state.clip_scale * grad[i];
    a.m[i] = beta1 * a.m[i] + (1 - beta1) * g;
    a.m_terms[i] = beta1 * a.m_terms[i] + (1 - beta1) * std::abs(g);
    a.v[i] = beta2 * a.v[i] + (1 - beta2) * g * g;
    const double per_m = 1 / (1 - std::pow(beta1, t)) / (std::sqrt(a.v[i] / (1 - std::pow(beta2, t))) + op.eps);
    const double decay = op.weight_decay * a.weights[i];
    a.weights[i] -= lr * (a.m[i] * per_m + decay);
    a.weights_terms[i] += lr * (a.m_terms[i] * per_m + std::abs(decay));
  }
}

// The bits of a float operand, so that NaN equals NaN and 0 differs from -0.
std::vector<std::uint32_t> bits_of(Device& device, const Tensor& tensor) {
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(tensor.elements()));
  device.download(bits.data(), tensor.data, tensor.bytes());
  return bits;
}
}  // namespace

TEST_CASE("add loss: adds the weighted sum of the losses to the step's loss") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::open_device(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    for (const std::int64_t n : {0, 1, 7, 4099}) {
      for (const bool weighted : {false, true}) {
        INFO("N = " << n << (weighted ? ", weighted" : ""));
        const State state(*device, fresh_state());
        const auto losses = Operand::normal(*device, rng, {n}, "losses"), weights = Operand::normal(*device, rng, {n}, "weights");
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
    const auto device = goat::open_device(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    const auto big = Operand::normal(*device, rng, {5, 3 * 16384 + 7}, "big"), small = Operand::normal(*device, rng, {1}, "small");
    const auto none = Operand::zeros(*device, {0, 4}, "none"), cube = Operand::normal(*device, rng, {3, 5, 7}, "cube", 100);
    const Tensor grads[] = {big, small, none, cube};
    const State state(*device, fresh_state());
    device->run(GradientNorm{state.pointer(), grads, 1.0f});
    double squares = 0;
    for (const Operand* grad : {&big, &small, &cube})
      for (const double value : grad->values()) squares += value * value;
    const StepState got = state.get();
    CHECK(got.grad_norm == static_cast<float>(std::sqrt(squares)));
    CHECK(got.clip_scale == Approx(1 / std::sqrt(squares)));
    CHECK(got.skip_update == 0);
    CHECK(got.updates == 1);
  }
}

TEST_CASE("gradient norm: clips only a norm above clip, and never with clip 0 or a zero gradient") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::open_device(name);
    INFO("device " << name);
    CHECK(after_norm(*device, fresh_state(), {3, 4}, 1).clip_scale == Approx(0.2));
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
    const auto device = goat::open_device(name);
    INFO("device " << name);
    const float largest = std::numeric_limits<float>::max();
    StepState bad_loss = fresh_state();
    bad_loss.loss = std::nanf("");
    for (const float clip : {0.0f, 1.0f}) {
      for (const StepState& got :
           {after_norm(*device, fresh_state(), {1, std::nan("")}, clip), after_norm(*device, fresh_state(), {infinity, 1}, clip),
            after_norm(*device, fresh_state(), {-infinity, infinity}, clip), after_norm(*device, fresh_state(), {largest, largest}, clip),
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
    const auto device = goat::open_device(name);
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

TEST_CASE("gradient norm: bitwise the same for any number of threads") {
  const int threads = omp_get_max_threads();
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::open_device(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    Values grad(10 * 16384 + 3);
    std::lognormal_distribution<double> wide(0, 5);
    for (double& value : grad) value = wide(rng);
    const float first = after_norm(*device, fresh_state(), grad, 1).grad_norm;
    for (const int count : {1, 2, 3, 5}) {
      omp_set_num_threads(count);
      CHECK(after_norm(*device, fresh_state(), grad, 1).grad_norm == first);
    }
    omp_set_num_threads(threads);
  }
}

TEST_CASE("adamw: matches float64 over several updates, with and without master weights, decay and clipping") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::open_device(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    for (const std::int64_t n : {1, 7, 16384 + 3}) {
      for (const bool with_master : {false, true}) {
        INFO("n = " << n << (with_master ? ", with master weights" : ""));
        const auto master = Operand::normal(*device, rng, {n}, "master"), m = Operand::zeros(*device, {n}, "m"),
                   v = Operand::zeros(*device, {n}, "v");
        const auto param = with_master ? Operand(*device, DType::f32, {n}, "param") : Operand::of(*device, master.values(), {n}, "param");
        Moments want = moments(master.values());
        StepState now = fresh_state();
        for (int step = 0; step < 5; ++step) {
          now.updates += 1;
          now.learning_rate = 0.01f * static_cast<float>(step + 1);
          now.clip_scale = step == 2 ? 0.3f : 1.0f;
          const State state(*device, now);
          const auto grad = Operand::normal(*device, rng, {n}, "grad", 0.01);
          AdamW op{state.pointer(), param, with_master ? master.tensor() : Tensor{}, m, v, grad};
          op.weight_decay = with_master ? 0.1f : 0.0f;
          device->run(op);
          adamw_oracle(want, grad.values(), now, op);
        }
        CHECK_FP32(m.values(), want.m, want.m_terms);
        CHECK_FP32(v.values(), want.v);
        CHECK_FP32(param.values(), want.weights, want.weights_terms);
        if (with_master) CHECK(param.values() == master.values());
      }
    }
  }
}

TEST_CASE("adamw: bias correction stays exact after a million updates, and a first update moves by the learning rate") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::open_device(name);
    INFO("device " << name);
    for (const std::int64_t updates : {std::int64_t{1}, std::int64_t{1000000}}) {
      StepState now = fresh_state();
      now.updates = updates;
      const State state(*device, now);
      const auto param = Operand::zeros(*device, {1}, "param"), m = Operand::zeros(*device, {1}, "m"), v = Operand::zeros(*device, {1}, "v");
      const auto grad = Operand::of(*device, {0.5}, {1}, "grad");
      const AdamW op{state.pointer(), param, {}, m, v, grad};
      Moments want = moments({0});
      device->run(op);
      adamw_oracle(want, {0.5}, now, op);
      CHECK_FP32(param.values(), want.weights);
      if (updates == 1) CHECK(param.values()[0] == Approx(-1e-2));
    }
  }
}

TEST_CASE("gradient norm: a loss or norm above its limit is a spike, skipped and counted; not finite comes first") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::open_device(name);
    const auto reason = [&](float loss, float loss_limit, float norm_limit, double grad) {
      StepState state = fresh_state();
      state.loss = loss;
      state.loss_limit = loss_limit;
      state.grad_norm_limit = norm_limit;
      const StepState after = after_norm(*device, state, {grad}, 0);
      CHECK(after.consecutive_skips == (after.skip_update ? 1 : 0));
      CHECK(after.updates == (after.skip_update ? 0 : 1));
      return after.skip_update;
    };
    CHECK(reason(2, 0, 0, 1) == 0);
    CHECK(reason(2, 2, 1, 1) == 0);
    CHECK(reason(2.1f, 2, 0, 1) == StepState::spike);
    CHECK(reason(2, 0, 1, 1.1) == StepState::spike);
    CHECK(reason(std::numeric_limits<float>::quiet_NaN(), 2, 1, 5) == StepState::not_finite);
    CHECK(reason(2, 1, 1, std::numeric_limits<double>::infinity()) == StepState::not_finite);
  }
}

TEST_CASE("adamw: a skipped update leaves every bit as it was") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::open_device(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    const std::int64_t n = 1000;
    const auto master = Operand::normal(*device, rng, {n}, "master"), m = Operand::normal(*device, rng, {n}, "m"),
               v = Operand::normal(*device, rng, {n}, "v");
    const Operand param(*device, DType::f32, {n}, "param");  // poisoned: NaN must survive as well
    auto grad = Operand::normal(*device, rng, {n}, "grad");
    Values gradient = grad.values();
    gradient[17] = std::nan("");
    grad.set(gradient);
    const State state(*device, fresh_state());
    const Tensor grads[] = {grad};
    std::vector<std::vector<std::uint32_t>> before;
    for (const Operand* operand : {&param, &master, &m, &v}) before.push_back(bits_of(*device, *operand));

    device->run(GradientNorm{state.pointer(), grads, 1.0f});
    AdamW op{state.pointer(), param, master, m, v, grad};
    op.weight_decay = 0.1f;
    device->run(op);

    std::size_t at = 0;
    for (const Operand* operand : {&param, &master, &m, &v}) CHECK(bits_of(*device, *operand) == before[at++]);
  }
}
