// AdamW against a float64 oracle, and that a skipped update leaves everything as it was.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/bf16_bits.h"
#include "kernels/philox.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/schedules.h"
#include "test/step_state.h"
#include "test/tested_device.h"

using goat::AdamW;
using goat::AddLoss;
using goat::ChunkSums;
using goat::Device;
using goat::DType;
using goat::Rounding;
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
using Values = std::vector<double>;
constexpr double infinity = std::numeric_limits<double>::infinity();

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
  const double beta1 = op.beta1, beta2 = op.beta2, t = static_cast<double>(state.updates),
               lr = static_cast<double>(state.learning_rate) * op.lr_scale;
  for (std::size_t i = 0; i < grad.size(); ++i) {
    const double g = state.clip_scale * grad[i];
    a.m[i] = beta1 * a.m[i] + (1 - beta1) * g;
    a.m_terms[i] = beta1 * a.m_terms[i] + (1 - beta1) * std::abs(g);
    a.v[i] = beta2 * a.v[i] + (1 - beta2) * g * g;
    const double per_m =
        1 / (1 - std::pow(beta1, t)) / (std::sqrt(a.v[i] / (1 - std::pow(beta2, t))) + op.eps);
    const double decay = op.weight_decay * a.weights[i];
    a.weights[i] -= lr * (a.m[i] * per_m + decay);
    a.weights_terms[i] += lr * (a.m_terms[i] * per_m + std::abs(decay));
  }
}

// The bytes of an operand, so that NaN equals NaN and 0 differs from -0.
std::vector<unsigned char> bytes_of(Device& device, const Tensor& tensor) {
  std::vector<unsigned char> bytes(tensor.bytes());
  device.download(bytes.data(), tensor.data, bytes.size());
  return bytes;
}

// How a parameter is kept: its dtype, and whether it has a master weight.
struct Storage {
  DType param;
  bool master;
};

std::vector<Storage> storages(DType dtype) {
  if (dtype == DType::f32) return {{dtype, false}, {dtype, true}};
  return {{dtype, true}};
}

// What bf16 parameters become at update t of master weights that the update leaves as they are: gradient and
// decay are zero.
Values rounded_by_adamw(Device& device, const Values& master_values, Rounding rounding, std::uint64_t seed,
                        std::int64_t t, std::int64_t first_element = 0) {
  const auto n = static_cast<std::int64_t>(master_values.size());
  StepState now = fresh_state();
  now.updates = t;
  const State state(device, now);
  const Operand param(device, DType::bf16, {n}, "param");
  const auto master = Operand::of(device, master_values, {n}, "master"), m = Operand::zeros(device, {n}, "m"),
             v = Operand::zeros(device, {n}, "v"), grad = Operand::zeros(device, {n}, "grad");
  AdamW op{state.pointer(), param, master, m, v, grad};
  op.rounding = rounding;
  op.seed = seed;
  op.first_element = first_element;
  const Values before = master.values();
  device.run(op);
  const Values after = master.values();
  for (std::size_t i = 0; i < after.size(); ++i) {
    INFO("master weight " << i);
    CHECK((after[i] == before[i] ||
           (std::isnan(after[i]) && std::isnan(before[i]))));  // which NaN it is, a GPU does not keep
  }
  return param.values();
}

// The neighbours of a number among the bf16 numbers, that next to zero first.
std::pair<double, double> bf16_neighbours(double value) {
  const auto single = static_cast<float>(value);
  std::uint32_t bits;
  std::memcpy(&bits, &single, sizeof bits);
  const std::uint32_t inner_bits = bits & 0xFFFF0000u, outer_bits = inner_bits + 0x10000u;
  float inner, outer;
  std::memcpy(&inner, &inner_bits, sizeof inner);
  std::memcpy(&outer, &outer_bits, sizeof outer);
  return {inner, outer};
}
}  // namespace

TEST_CASE("gradient norm, loss and adamw: the same bits in every order of the work") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    const std::int64_t n = 5 * 16384 + 3, tokens = 3001;
    Values wide(n);
    std::lognormal_distribution<double> lognormal(0, 5);
    for (double& value : wide) value = lognormal(rng);
    const auto grad = Operand::of(*device, wide, {n}, "grad"),
               losses = Operand::normal(*device, rng, {tokens}, "losses"),
               weights = Operand::normal(*device, rng, {n}, "weights");
    const Values start = weights.values();
    goat::test::check_schedules(name, [&, type = dtype] {
      const State state(*device, fresh_state());
      const auto master = Operand::of(*device, start, {n}, "master"), m = Operand::zeros(*device, {n}, "m"),
                 v = Operand::zeros(*device, {n}, "v");
      const Operand param(*device, type, {n}, "param");
      const auto loss = Operand::of(*device, {1}, {1, 1}, "loss", DType::f64);
      const Operand sums(*device, DType::f64, {1, goat::test::chunks_of(grad)}, "sums");
      device->run(AddLoss{loss.tensor().as<double>(), losses, {}, 0.25f});
      device->run(SquaredSums{sums.tensor().select(0, 0), grad});
      const std::vector<ChunkSums> squares(70, {sums, 0});  // more than one launch takes
      device->run(StepVerdict{state.pointer(), loss, squares, 1.0f});
      AdamW op{state.pointer(), param, master, m, v, grad};
      op.rounding = Rounding::stochastic;
      device->run(op);
      Values all{state.get().loss, state.get().grad_norm};
      for (const Operand* operand : {&loss, &sums, &param, &master, &m, &v}) {
        const Values values = operand->values();
        all.insert(all.end(), values.begin(), values.end());
      }
      return all;
    });
  }
}

TEST_CASE("adamw: matches float64 over several updates, with and without master weights") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    Rng rng(seed);
    for (const std::int64_t n : {1, 7, 8, 16384 + 3}) {
      for (const Storage& kept : storages(dtype)) {
        const std::int64_t shift = n == 8 ? 1 : 0;  // elements off the alignment of vectors
        INFO("device " << name << ", param " << name_of(kept.param) << ", GOAT_TEST_SEED=" << seed);
        INFO("n = " << n << (kept.master ? ", with master weights" : ""));
        const auto view = [&](const Operand& memory) { return memory.tensor().slice(0, shift, n); };
        const auto values = [&](const Operand& memory) {
          return goat::test::values_of(*device, view(memory));
        };
        const auto master = Operand::normal(*device, rng, {n + shift}, "master"),
                   m = Operand::zeros(*device, {n + shift}, "m"),
                   v = Operand::zeros(*device, {n + shift}, "v");
        const auto param = kept.master
                               ? Operand(*device, kept.param, {n + shift}, "param")
                               : Operand::of(*device, master.values(), {n + shift}, "param", kept.param);
        Moments want = moments(values(master));
        StepState now = fresh_state();
        for (int step = 0; step < 5; ++step) {
          now.updates += 1;
          now.learning_rate = 0.01f * static_cast<float>(step + 1);
          now.clip_scale = step == 2 ? 0.3f : 1.0f;
          const State state(*device, now);
          const auto grad = Operand::normal(*device, rng, {n + shift}, "grad", 0.01);
          AdamW op{state.pointer(), view(param), kept.master ? view(master) : Tensor{},
                   view(m),         view(v),     view(grad)};
          op.weight_decay = kept.master ? 0.1f : 0.0f;
          op.lr_scale = step % 2 == 0 ? 1.0f : 5.0f;
          device->run(op);
          adamw_oracle(want, values(grad), now, op);
        }
        CHECK_FP32(values(m), want.m, want.m_terms);
        CHECK_FP32(values(v), want.v);
        CHECK_FP32(values(kept.master ? master : param), want.weights, want.weights_terms);
        if (kept.master) CHECK(values(param) == goat::test::rounded_to(kept.param, values(master)));
        for (const Operand* memory : {&param, &master, &m, &v})
          memory->values();  // throws if the guards were touched
      }
    }
  }
}

TEST_CASE(
    "adamw: bias correction stays exact after a million updates, and a first update moves by the learning "
    "rate") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::test::open_tested(name);
    INFO("device " << name);
    for (const std::int64_t updates : {std::int64_t{1}, std::int64_t{1000000}}) {
      StepState now = fresh_state();
      now.updates = updates;
      const State state(*device, now);
      const auto param = Operand::zeros(*device, {1}, "param"), m = Operand::zeros(*device, {1}, "m"),
                 v = Operand::zeros(*device, {1}, "v");
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

TEST_CASE(
    "step verdict: a loss or norm above its limit is a spike, skipped and counted; not finite comes first") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::test::open_tested(name);
    INFO("device " << name);
    const auto reason = [&](float loss, float loss_limit, float norm_limit, double grad) {
      StepState state = fresh_state();
      state.loss = loss;
      state.loss_limit = loss_limit;
      state.grad_norm_limit = norm_limit;
      const StepState after = after_verdict(*device, state, {grad}, 0);
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
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    const std::int64_t n = 1000;
    const auto master = Operand::normal(*device, rng, {n}, "master"),
               m = Operand::normal(*device, rng, {n}, "m"), v = Operand::normal(*device, rng, {n}, "v");
    const Operand param(*device, dtype, {n}, "param");  // poisoned: NaN must survive as well
    auto grad = Operand::normal(*device, rng, {n}, "grad");
    Values gradient = grad.values();
    gradient[17] = std::nan("");
    grad.set(gradient);
    const State state(*device, fresh_state());
    const Tensor grads[] = {grad};
    std::vector<std::vector<unsigned char>> before;
    for (const Operand* operand : {&param, &master, &m, &v}) before.push_back(bytes_of(*device, *operand));

    goat::test::judge(*device, state.pointer(), 1, grads, 1.0f);
    AdamW op{state.pointer(), param, master, m, v, grad};
    op.weight_decay = 0.1f;
    op.rounding = Rounding::stochastic;
    device->run(op);

    std::size_t at = 0;
    for (const Operand* operand : {&param, &master, &m, &v})
      CHECK(bytes_of(*device, *operand) == before[at++]);
  }
}

// Per element: sum over updates of (parameter - master) in units of its standard deviation.
TEST_CASE(
    "adamw: stochastic rounding goes to one of the two neighbours, and to the master weight in the mean") {
  for (const std::string& name : goat::test::device_names(DType::bf16)) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    const std::int64_t n = 4096 + 3;
    const int updates = 64;
    const Values master = Operand::normal(*device, rng, {n}, "master", 0.02).values();
    Values sums(master.size()), variance(master.size());
    double total = 0, neighbours = 0, across_updates = 0;
    Values last(master.size());
    for (int t = 1; t <= updates; ++t) {
      const Values param = rounded_by_adamw(*device, master, Rounding::stochastic, seed, t);
      double previous = 0;
      for (std::size_t i = 0; i < master.size(); ++i) {
        const auto [inner, outer] = bf16_neighbours(master[i]);
        if (param[i] != inner && param[i] != outer)
          FAIL("element " << i << ": " << param[i] << " is not beside " << master[i]);
        const double p = (master[i] - inner) / (outer - inner),
                     deviation = std::abs(outer - inner) * std::sqrt(p * (1 - p));
        const double z = deviation > 0 ? (param[i] - master[i]) / deviation : 0;
        sums[i] += z;
        total += z;
        neighbours += z * previous;
        across_updates += z * last[i];
        previous = last[i] = z;
      }
    }
    const double draws = static_cast<double>(updates) * static_cast<double>(n);
    // The sums are nearly standard normal, and the mean of their squares has variance 2/n. An element that is
    // hardly off a bf16 number is left out: one draw in thousands decides its square.
    double spread = 0, counted = 0;
    for (std::size_t i = 0; i < master.size(); ++i) {
      const auto [inner, outer] = bf16_neighbours(master[i]);
      const double p = (master[i] - inner) / (outer - inner);
      if (p < 1.0 / 64 || p > 63.0 / 64) continue;
      spread += sums[i] * sums[i] / updates;
      ++counted;
    }
    CHECK(counted > 0.9 * static_cast<double>(n));
    spread /= counted;
    CHECK(std::abs(total) < 5 * std::sqrt(draws));
    CHECK(std::abs(neighbours) < 5 * std::sqrt(draws));
    CHECK(std::abs(across_updates) < 5 * std::sqrt(draws));
    CHECK(spread == Approx(1).margin(6 * std::sqrt(2.0 / counted)));
  }
}

TEST_CASE("adamw: the bits of stochastic rounding are Philox's, a function of seed, update and element") {
  for (const std::string& name : goat::test::device_names(DType::bf16)) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    for (const std::int64_t n : {1, 6, 1003}) {
      const Values master = Operand::normal(*device, rng, {n}, "master").values();
      for (const std::int64_t t : {std::int64_t{1}, std::int64_t{1} << 33}) {
        for (const std::int64_t first : {std::int64_t{0}, std::int64_t{12}, std::int64_t{1} << 34}) {
          Values want, on_host;
          for (std::size_t i = 0; i < master.size(); ++i) {
            const std::uint64_t block = static_cast<std::uint64_t>(first) / 4 + i / 4;
            const auto word = goat::philox4x32(
                {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                 static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(t >> 32)},
                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)})[i % 4];
            const auto [inner, outer] = bf16_neighbours(master[i]);
            const double cut = (master[i] - inner) / (outer - inner) * 0x1p16;
            want.push_back(cut + (word >> 16) >= 0x1p16 ? outer : inner);
            const auto place = first + static_cast<std::int64_t>(i);
            const auto bits = goat::rounding_bits(seed, place / 4, t)[static_cast<std::size_t>(place % 4)];
            on_host.push_back(goat::bf16_value(goat::bf16_bits(static_cast<float>(master[i]), bits)));
          }
          CHECK(rounded_by_adamw(*device, master, Rounding::stochastic, seed, t, first) == want);
          CHECK(on_host == want);
        }
      }
    }
    const Values master = Operand::normal(*device, rng, {1000}, "master").values();
    const auto round = [&](std::uint64_t key, std::int64_t t) {
      return rounded_by_adamw(*device, master, Rounding::stochastic, key, t);
    };
    const Values first = round(seed, 5);
    CHECK(round(seed, 5) == first);
    CHECK(round(seed, 6) != first);
    CHECK(round(seed + 1, 5) != first);
    CHECK(round(seed + (std::uint64_t{1} << 32), 5) != first);
  }
}

TEST_CASE(
    "adamw: stochastic rounding keeps bf16 numbers, infinities and NaN, and makes no infinity of what rounds "
    "to a number") {
  for (const std::string& name : goat::test::device_names(DType::bf16)) {
    const auto device = goat::test::open_tested(name);
    INFO("device " << name);
    const double largest = 0x1.FEp127, nan = std::nan("");
    const Values exact = {0, -0.0, 1, -1.5, 0x1p-133, -0x1.Ap-120, largest, -largest};
    for (std::int64_t t = 1; t < 20; ++t) {
      const Values got = rounded_by_adamw(*device, exact, Rounding::stochastic, 1, t);
      CHECK(got == exact);
      CHECK(std::signbit(got[1]));
      const Values edge =
          rounded_by_adamw(*device, {nan, 0x1.FEFEp127, -0x1.FEFEp127, -nan}, Rounding::stochastic, 1, t);
      CHECK(std::isnan(edge[0]));
      CHECK(edge[1] == largest);
      CHECK(edge[2] == -largest);
      CHECK(std::isnan(edge[3]));
    }

    StepState now = fresh_state();  // a step that overflows
    now.updates = 1;
    now.learning_rate = 3e38f;
    const State state(*device, now);
    const Operand param(*device, DType::bf16, {2}, "param");
    const auto master = Operand::of(*device, {1e38, -1e38}, {2}, "master"),
               m = Operand::zeros(*device, {2}, "m"), v = Operand::zeros(*device, {2}, "v"),
               grad = Operand::of(*device, {-1, 1}, {2}, "grad");
    AdamW op{state.pointer(), param, master, m, v, grad};
    op.rounding = Rounding::stochastic;
    device->run(op);
    CHECK(param.values() == Values{infinity, -infinity});
  }
}

// The gradient of |w - 20|^2 / 2, taken at the bf16 parameters. Steps of 0.02 are lost on bf16 numbers
// between 4 and 8, which are 0.03 apart. All weights start at least 12 below the minimum: near it the
// rounding of a parameter is as large as its gradient, and the two runs part for good reason.
TEST_CASE("adamw: bf16 parameters follow an fp32 run over 100 updates") {
  for (const std::string& name : goat::test::device_names(DType::bf16)) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    Rng rng(seed);
    const std::int64_t n = 300;
    std::uniform_real_distribution<double> up_to_8(-8, 8);
    Values start(n);
    for (double& value : start) value = up_to_8(rng);
    const auto run = [&](DType dtype, Rounding rounding) {
      const auto master = Operand::of(*device, start, {n}, "master"),
                 param = Operand::of(*device, start, {n}, "param", dtype),
                 m = Operand::zeros(*device, {n}, "m"), v = Operand::zeros(*device, {n}, "v");
      StepState now = fresh_state();
      now.learning_rate = 0.02f;
      for (now.updates = 1; now.updates <= 100; ++now.updates) {
        const State state(*device, now);
        Values gradient = param.values();
        for (double& value : gradient) value -= 20;
        const auto grad = Operand::of(*device, gradient, {n}, "grad");
        AdamW op{state.pointer(), param, master, m, v, grad};
        op.rounding = rounding;
        op.seed = seed;
        device->run(op);
      }
      return master.values();
    };
    const Values want = run(DType::f32, Rounding::nearest);
    for (const Rounding rounding : {Rounding::nearest, Rounding::stochastic}) {
      INFO("device " << name << (rounding == Rounding::nearest ? ", nearest" : ", stochastic")
                     << ", GOAT_TEST_SEED=" << seed);
      const Values got = run(DType::bf16, rounding);
      double worst = 0, moved = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        worst = std::max(worst, std::abs(got[i] - want[i]));
        moved = std::max(moved, std::abs(want[i] - start[i]));
      }
      CHECK(moved > 1);
      CHECK(worst < 0.001 * moved);
    }
  }
}
