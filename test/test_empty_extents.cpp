// Extents of 0: sums of no terms are written as 0, what is accumulated into stays as it is, and nothing else
// is touched.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "test/attention_operands.h"
#include "test/catch.h"
#include "test/each_variant.h"

using namespace goat;
using namespace goat::test;

namespace {
using Index = std::int64_t;
using Values = std::vector<double>;

template <class Body>
void for_each_device(Body body) {
  for_each_variant([&](Device& device, DType dtype, Rng& rng) {
    if (dtype == DType::f32) body(device, rng);
  });
}

bool all_zero(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return value == 0; });
}
}  // namespace

TEST_CASE("attention backward: without queries every gradient of the keys is 0") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const Index head_dim : {32, 130})
      for (const bool deterministic : {true, false}) {
        INFO("d_h " << head_dim << (deterministic ? ", deterministic" : ""));
        const AttentionShape shape{2, 0, 70, 3, head_dim, head_dim - 6, 4, true, true, dtype};
        DeviceAttention attention(device, random_attention(shape, rng), shape.content_dim, shape.lanes,
                                  dtype);
        attention.forward();
        AttentionBackward op = attention.backward_operation();
        op.deterministic = deterministic;
        device.run(op);
        const Values parts[] = {attention.k_gradient(), attention.v_gradient(), attention.dk_lanes.values(),
                                attention.dkey_bias.values(), attention.dslope.values()};
        for (const Values& part : parts) {
          CHECK(part.size() >= 2 * 70 * 3);
          CHECK(all_zero(part));
        }
      }
  });
}

TEST_CASE("attention: without sequences, or without tokens at all, nothing happens") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const AttentionShape& shape : {AttentionShape{0, 5, 5, 2, 16, 10, 4, true, true, dtype},
                                        AttentionShape{0, 1, 300, 2, 16, 10, 4, true, true, dtype},
                                        AttentionShape{2, 0, 0, 2, 16, 10, 4, true, true, dtype}}) {
      DeviceAttention attention(device, random_attention(shape, rng), shape.content_dim, shape.lanes, dtype);
      attention.forward();
      attention.backward();
    }
  });
}

TEST_CASE("embedding, positions, classifier and rope: no tokens are no work") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    const auto table = Operand::normal(device, rng, {7, 8}, "table", 1, dtype),
               dtable = Operand::normal(device, rng, {7, 8}, "dtable");
    const Values before = dtable.values();
    const Operand none(device, dtype, {0, 8}, "none"), tokens(device, DType::i32, {0}, "tokens"),
        losses(device, DType::f32, {0}, "losses");
    device.run(EmbeddingForward{none, tokens, table});
    device.run(EmbeddingBackward{dtable, none, tokens});
    device.run(CrossEntropy{none, losses, tokens, {}, 1, 8, true});
    CHECK(dtable.values() == before);

    const auto fourier = Operand::normal(device, rng, {5, 4, 2}, "fourier");
    const Operand no_sequences(device, dtype, {0, 5, 2, 8}, "q"), no_rows(device, dtype, {2, 0, 2, 8}, "q");
    for (const Operand* q : {&no_sequences, &no_rows}) {
      device.run(Rope{*q, *q, fourier, 0, false});
      const Tensor stream = q->tensor().reshape({q->tensor().shape[0], q->tensor().shape[1], 16});
      const auto rows = Operand::normal(device, rng, {5, 16}, "rows");
      const Values rows_before = rows.values();
      device.run(AddPositions{stream, rows, 0});
      device.run(AddPositionsBackward{rows, stream});
      CHECK(rows.values() == rows_before);
    }
  });
}

TEST_CASE("forget gates: no tokens are no work, and without columns a gate is its bias") {
  for_each_variant([](Device& device, DType dtype, Rng& rng) {
    for (const auto& [N, C, H] :
         {std::array<Index, 3>{0, 8, 3}, {0, 0, 3}, {4, 0, 3}, {4, 8, 0}, {0, 0, 0}}) {
      INFO("N " << N << ", C " << C << ", H " << H);
      const auto x = Operand::normal(device, rng, {N, C}, "x", 1, dtype),
                 dx = Operand::normal(device, rng, {N, C}, "dx", 1, dtype),
                 weight = Operand::normal(device, rng, {H, C}, "weight"),
                 bias = Operand::normal(device, rng, {H}, "bias"),
                 dweight = Operand::normal(device, rng, {H, C}, "dweight"),
                 dbias = Operand::normal(device, rng, {H}, "dbias"),
                 dgate = Operand::of(device, Values(static_cast<std::size_t>(N * H), 0.5), {N, H}, "dgate");
      const Operand gate(device, DType::f32, {N, H}, "gate");
      const Values start[] = {dx.values(), dweight.values(), dbias.values(), bias.values()};
      device.run(ForgetGatesForward{gate, x, weight, bias});
      device.run(ForgetGatesBackward{dx, dweight, dbias, dgate, x, weight});
      const Values gates = gate.values();
      for (std::size_t i = 0; i < gates.size(); ++i) CHECK(gates[i] == start[3][i % start[3].size()]);
      CHECK(dx.values() == start[0]);
      CHECK(dweight.values() == start[1]);
      for (std::size_t h = 0; h < start[2].size(); ++h)
        CHECK(dbias.values()[h] == Approx(start[2][h] + 0.5 * static_cast<double>(N)));
    }
  });
}

TEST_CASE("forget bias: without tokens, sequences or heads nothing is written") {
  for_each_device([](Device& device, Rng& rng) {
    for (const auto& [B, T, H] : {std::array<Index, 3>{0, 5, 2}, {2, 0, 2}, {2, 5, 0}}) {
      const auto key_bias = Operand::normal(device, rng, {B, H, T + 3}, "key_bias", 1, DType::f64),
                 gate = Operand::normal(device, rng, {B, T, H}, "gate"),
                 dkey_bias = Operand::normal(device, rng, {B, H, T}, "dkey_bias");
      const Operand dgate(device, DType::f32, {B, T, H}, "dgate");
      const Values before = key_bias.values();
      device.run(ForgetBiasForward{key_bias, gate, 2});
      CHECK(key_bias.values() == before);
      device.run(ForgetBiasBackward{dgate, dkey_bias, gate});
    }
  });
}

TEST_CASE("prior: without tokens, sequences or modes the sums are those of no terms") {
  for_each_device([](Device& device, Rng& rng) {
    const Index H = 2;
    for (const auto& [B, T, R] : {std::array<Index, 3>{0, 3, 2}, {2, 0, 2}, {2, 3, 0}, {2, 0, 0}}) {
      INFO("B " << B << ", T " << T << ", R " << R);
      const auto alpha = Operand::normal(device, rng, {H, R}, "alpha"),
                 beta = Operand::normal(device, rng, {H, R}, "beta"),
                 dalpha = Operand::normal(device, rng, {H, R}, "dalpha"),
                 dbeta = Operand::normal(device, rng, {H, R}, "dbeta"),
                 dlambda = Operand::normal(device, rng, {H}, "dlambda"),
                 dfrequency = Operand::normal(device, rng, {R}, "dfrequency"),
                 frequency = Operand::normal(device, rng, {R}, "frequency", 1, DType::f64),
                 lanes = Operand::normal(device, rng, {B, H, T, 2 * R}, "lanes"),
                 dslope = Operand::of(device, Values(B * H * T, 0.25), {B, H, T}, "dslope"),
                 key_bias = Operand::normal(device, rng, {H, T}, "key_bias");
      Values places;
      for (Index t = 0; t < T; ++t) places.push_back(static_cast<double>(t));
      const auto positions = Operand::of(device, places, {T, 1}, "positions", DType::i32);
      const Operand fourier(device, DType::f32, {T, R, 2}, "fourier");
      device.run(FourierTable{fourier, frequency, positions});
      const Values start[] = {dalpha.values(), dbeta.values(), dfrequency.values(), dlambda.values()};
      device.run(PriorLanesBackward{dalpha, dbeta, dlambda, dfrequency, lanes, lanes, dslope, alpha, beta,
                                    fourier, positions});
      CHECK(dalpha.values() == start[0]);
      CHECK(dbeta.values() == start[1]);
      CHECK(dfrequency.values() == start[2]);
      for (std::size_t h = 0; h < 2; ++h)
        CHECK(dlambda.values()[h] == Approx(start[3][h] + 0.25 * static_cast<double>(B * T)));

      const Operand q(device, DType::f32, {B, T, H, 8}, "q");
      PriorLanesForward forward;
      forward.q = q;
      forward.alpha = alpha;
      forward.beta = beta;
      forward.key_bias = key_bias;
      forward.fourier = fourier;
      forward.content_dim = 2;
      forward.scale = 1;
      device.run(forward);
      if (B * T > 0)
        CHECK(values_of(device, q.tensor().slice(3, 2, 2)) ==
              Values(B * T * H * 2, PriorLanesForward::key_bias_unit));
    }
  });
}

TEST_CASE("sink: without units the key bias is the bump alone, and without tokens nothing is added") {
  for_each_device([](Device& device, Rng& rng) {
    const Index H = 3;
    for (const auto& [B, T, M, n] :
         {std::array<Index, 4>{2, 40, 2, 0}, {2, 0, 2, 5}, {0, 40, 2, 5}, {2, 40, 0, 5}}) {
      INFO("B " << B << ", T " << T << ", M " << M << ", n " << n);
      const Index F = 2 * M + 2;
      Values places;
      for (Index t = 0; t < T; ++t) places.push_back(static_cast<double>(t));
      const auto positions = Operand::of(device, places, {T, 1}, "positions", DType::i32);
      const auto frequency = Operand::normal(device, rng, {M}, "frequency", 1, DType::f64);
      const Operand features(device, DType::f32, {T, F}, "features");
      device.run(SinkFeatures{features, frequency, positions, 64});
      for (const double value : features.values()) CHECK(std::isfinite(value));

      const auto w1 = Operand::normal(device, rng, {n, F}, "w1"),
                 b1 = Operand::normal(device, rng, {n}, "b1"),
                 w2 = Operand::normal(device, rng, {H, n}, "w2"),
                 bump = Operand::normal(device, rng, {H}, "bump");
      const Operand key_bias(device, DType::f32, {H, T}, "key_bias"), hidden(device, DType::f32, {T, n}, "x");
      device.run(SinkForward{key_bias, hidden, features, w1, b1, w2, bump});
      const Values got = key_bias.values();
      for (std::size_t i = 0; i < got.size(); ++i) {
        CHECK(std::isfinite(got[i]));
        if (n == 0) CHECK(got[i] == (i % 40 == 0 ? bump.values()[i / 40] : 0));
      }

      const auto dw1 = Operand::normal(device, rng, {n, F}, "dw1"),
                 db1 = Operand::normal(device, rng, {n}, "db1"),
                 dw2 = Operand::normal(device, rng, {H, n}, "dw2"),
                 dbump = Operand::normal(device, rng, {H}, "dbump"),
                 dkey_bias = Operand::of(device, Values(B * H * T, 0.5), {B, H, T}, "dkey_bias");
      const Operand sum(device, DType::f32, {H, T}, "sum");
      const Values start[] = {dw1.values(), db1.values(), dw2.values(), dbump.values()};
      device.run(SinkBackward{dw1, db1, dw2, dbump, sum, dkey_bias, hidden, features, w2});
      CHECK(sum.values() == Values(H * T, 0.5 * static_cast<double>(B)));
      const double added = T > 0 ? 0.5 * static_cast<double>(B) : 0;
      for (std::size_t h = 0; h < 3; ++h) CHECK(dbump.values()[h] == Approx(start[3][h] + added));
      if (B * T * n > 0) continue;
      CHECK(dw1.values() == start[0]);
      CHECK(db1.values() == start[1]);
      CHECK(dw2.values() == start[2]);
    }
  });
}

TEST_CASE("loss, norm, optimizer and softplus: nothing to sum up, nothing to move") {
  for_each_device([](Device& device, Rng&) {
    const Operand none(device, DType::f32, {0}, "none");
    DeviceBuffer memory(device, sizeof(StepState));
    StepState state{};
    device.upload(memory.data(), &state, sizeof state);
    auto* on_device = static_cast<StepState*>(memory.data());
    const auto loss = Operand::of(device, {2.5}, {1, 1}, "loss", DType::f64);
    device.run(AddLoss{loss.tensor().as<double>(), none, {}, 1});
    const Operand sums(device, DType::f64, {1, 0}, "sums");
    device.run(SquaredSums{sums.tensor().select(0, 0), none});
    const ChunkSums squares[] = {{sums, 0}};
    device.run(StepVerdict{on_device, loss, squares, 1});
    device.run(AdamW{on_device, none, {}, none, none, none});
    device.run(SoftplusForward{none, none});
    device.run(SoftplusBackward{none, none, none});
    device.download(&state, memory.data(), sizeof state);
    CHECK(state.loss == 2.5f);
    CHECK(state.grad_norm == 0);
    CHECK(state.updates == 1);
    const Operand no_losses(device, DType::f64, {3, 0}, "losses");
    device.run(StepVerdict{on_device, no_losses, {}, 1});
    device.download(&state, memory.data(), sizeof state);
    CHECK(state.loss == 0);
    CHECK(state.updates == 2);
  });
}
