// The operand checks of a model's layers: what fits passes, what does not is named. (check never reads the
// memory of an operand.)
#include "kernels/operations.h"

#include "test/catch.h"
#include "test/operation_checks.h"

using namespace goat;
using namespace goat::test;

namespace {
// N = 6 tokens, C = 4.
LayerNormForward layernorm_forward() {
  return {.out = f32({6, 4}),
          .mean = f32({6}),
          .rstd = f32({6}),
          .sum = f32({6, 4}),
          .x = f32({6, 4}),
          .residual = f32({6, 4}),
          .weight = f32({4}),
          .bias = f32({4})};
}

// B = 2, T = 5, H = 3, d_h = 16, R = 2, d_c = 10; q, k and v inside one [B, T, 3, H, d_h].
constexpr std::int64_t B = 2, T = 5, H = 3, d_h = 16, R = 2, d_c = 10;
Tensor packed(std::int64_t which) { return f32({B, T, 3, H, d_h}).select(2, which); }

AttentionForward attention_forward() {
  AttentionForward op;
  op.out = f32({B, T, H, d_h});
  op.lse = f32({B, H, T});
  op.q = packed(0);
  op.k = packed(1);
  op.v = packed(2);
  op.slope = f32({H});
  op.scale = 0.3f;
  return op;
}

AttentionBackward attention_backward() {
  AttentionBackward op;
  op.dq = packed(0);
  op.dk = packed(1);
  op.dv = packed(2);
  op.dq_lanes = op.dk_lanes = f32({B, H, T, 2 * R});
  op.dkey_bias = op.dslope = f32({B, H, T});
  op.delta = op.lse = f32({B, H, T});
  op.dout = op.out = f32({B, T, H, d_h});
  op.q = packed(0);
  op.k = packed(1);
  op.v = packed(2);
  op.slope = f32({H});
  op.scale = 0.3f;
  op.content_dim = d_c;
  return op;
}

PriorLanesForward prior_lanes_forward() {
  PriorLanesForward op;
  op.q = packed(0);
  op.k = packed(1);
  op.alpha = op.beta = f32({H, R});
  op.key_bias = f32({H, 8});
  op.fourier = f32({8, R, 2});
  op.content_dim = d_c;
  op.first_position = 3;
  op.scale = 0.3f;
  return op;
}

Rope rope() {
  Rope op;
  op.q = packed(0);
  op.k = packed(1);
  op.fourier = f32({8, d_h / 2, 2});
  op.first_position = 3;
  return op;
}

PriorLanesBackward prior_lanes_backward() {
  PriorLanesBackward op;
  op.dalpha = op.dbeta = op.alpha = op.beta = f32({H, R});
  op.dlambda = f32({H});
  op.dfrequency = f32({R});
  op.dq_lanes = op.dk_lanes = f32({B, H, T, 2 * R});
  op.dslope = f32({B, H, T});
  op.fourier = f32({T, R, 2});
  op.positions = i32({T, 1});
  return op;
}

SinkBackward sink_backward() {
  SinkBackward op;
  op.dw1 = f32({7, 6});
  op.db1 = f32({7});
  op.dw2 = op.w2 = f32({H, 7});
  op.dbump = f32({H});
  op.dkey_bias_sum = f32({H, T});
  op.dkey_bias = f32({B, H, T});
  op.hidden = f32({T, 7});
  op.features = f32({T, 6});
  return op;
}

}  // namespace

TEST_CASE("operand checks: a message names operation, operand, shape, dtype and what was expected") {
  LayerNormForward op = layernorm_forward();
  op.weight = f32({3});
  CHECK(complaint(op) == "layernorm_forward: weight [3] f32: expected shape [C] = [4] (C = 4 in x)");
  op.weight = f32({3}, "blocks.0.ln1.weight");
  CHECK(complaint(op) ==
        "layernorm_forward: weight 'blocks.0.ln1.weight' [3] f32: expected shape [C] = [4] (C = 4 in x)");
  op.weight = f32({3}, "weight");
  CHECK(complaint(op) == "layernorm_forward: weight [3] f32: expected shape [C] = [4] (C = 4 in x)");
  op.weight = f32({4, 1});
  CHECK(complaint(op) == "layernorm_forward: weight [4, 1] f32: expected shape [C] = [4]");
  op.weight = bf16({4});
  CHECK(complaint(op) == "layernorm_forward: weight [4] bf16: expected f32");
  op.weight = f32({4});
  op.x = i32({6, 4});
  CHECK(complaint(op) == "layernorm_forward: x [6, 4] i32: expected f32 or bf16");
  op.x = bf16({6, 4});
  CHECK(complaint(op) == "layernorm_forward: residual [6, 4] f32: expected bf16 like x");
  op.x = f32({6, 4});
  op.weight = {};
  CHECK(complaint(op) == "layernorm_forward: weight is missing");
  op.weight = Tensor::contiguous(nullptr, DType::f32, {4}, "w");
  CHECK(complaint(op) == "layernorm_forward: weight 'w' [4] f32: has no memory");
  op.weight = f32({4, 2}).select(1, 0);
  CHECK(complaint(op) == "layernorm_forward: weight [4] f32: expected a contiguous tensor");
}

TEST_CASE(
    "operand checks: weights have the activations' dtype; norms' parameters and all gradients are f32") {
  CHECK(complaint(EmbeddingForward{bf16({6, 4}), i32({6}), bf16({10, 4})}) == "");
  CHECK(complaint(EmbeddingForward{bf16({6, 4}), i32({6}), f32({10, 4})}) ==
        "embedding_forward: out [6, 4] bf16: expected f32 like table");
  CHECK(complaint(EmbeddingBackward{f32({10, 4}), bf16({6, 4}), i32({6})}) == "");
  CHECK(complaint(EmbeddingBackward{bf16({10, 4}), bf16({6, 4}), i32({6})}) ==
        "embedding_backward: dtable [10, 4] bf16: expected f32");

  CHECK(complaint(LinearForward{bf16({6, 3}), bf16({6, 4}), f32({3, 4}), {}}) ==
        "linear_forward: weight [3, 4] f32: expected bf16 like x");
  CHECK(complaint(LinearForward{bf16({6, 3}), bf16({6, 4}), bf16({3, 4}), f32({3})}) ==
        "linear_forward: bias [3] f32: expected bf16 like x");
  CHECK(complaint(LinearBackwardWeight{f32({3, 4}), f32({3}), bf16({6, 3}), bf16({6, 4})}) == "");
  CHECK(complaint(LinearBackwardWeight{bf16({3, 4}), f32({3}), bf16({6, 3}), bf16({6, 4})}) ==
        "linear_backward_weight: dweight [3, 4] bf16: expected f32");
  CHECK(complaint(LinearBackwardWeight{f32({3, 4}), bf16({3}), bf16({6, 3}), bf16({6, 4})}) ==
        "linear_backward_weight: dbias [3] bf16: expected f32");

  const RmsNormBackward norm{bf16({6, 4}), f32({4}), bf16({6, 4}), bf16({6, 4}), f32({6}), f32({4})};
  CHECK(complaint(norm) == "");
  CHECK(complaint(norm, [](auto& op) { op.weight = bf16({4}); }) ==
        "rmsnorm_backward: weight [4] bf16: expected f32");
  CHECK(complaint(norm, [](auto& op) { op.dweight = bf16({4}); }) ==
        "rmsnorm_backward: dweight [4] bf16: expected f32");
}

TEST_CASE("operand checks: embedding") {
  const EmbeddingForward forward{.out = f32({6, 4}), .tokens = i32({6}), .table = f32({10, 4})};
  CHECK(complaint(forward) == "");
  CHECK(complaint(forward, [](auto& op) { op.tokens = f32({6}); }) ==
        "embedding_forward: tokens [6] f32: expected i32");
  CHECK(complaint(forward, [](auto& op) {
          op.out = f32({5, 4});
        }) == "embedding_forward: out [5, 4] f32: expected shape [N, C] = [6, 4] (N = 6 in tokens)");

  const EmbeddingBackward backward{.dtable = f32({10, 4}), .dout = f32({6, 4}), .tokens = i32({6})};
  CHECK(complaint(backward) == "");
  CHECK(complaint(backward, [](auto& op) {
          op.dtable = f32({10, 3});
        }) == "embedding_backward: dtable [10, 3] f32: expected shape [V_p, C] = [10, 4] (C = 4 in dout)");
}

TEST_CASE("operand checks: positions") {
  const AddPositions forward{.stream = bf16({2, 3, 4}), .table = f32({10, 4}), .first_position = 7};
  CHECK(complaint(forward) == "");
  CHECK(complaint(forward, [](auto& op) {
          op.table = bf16({10, 4});
        }) == "add_positions: table [10, 4] bf16: expected f32");
  CHECK(complaint(forward, [](auto& op) { op.first_position = 8; }) ==
        "add_positions: first_position = 8: expected 0 <= first_position <= P - T (P = 10 in table, T = 3 in "
        "stream)");

  const AddPositionsBackward backward{.dtable = f32({3, 4}), .dstream = bf16({2, 3, 4})};
  CHECK(complaint(backward) == "");
  CHECK(complaint(backward, [](auto& op) {
          op.dtable = f32({2, 4});
        }) == "add_positions_backward: expected T <= P (T = 3 in dstream, P = 2 in dtable)");
}

TEST_CASE("operand checks: layernorm") {
  const LayerNormForward forward = layernorm_forward();
  CHECK(complaint(forward) == "");
  CHECK(complaint(forward, [](auto& op) { op.sum = op.residual = {}; }) == "");
  CHECK(complaint(forward, [](auto& op) { op.sum = {}; }) ==
        "layernorm_forward: residual is given without sum: give both or neither");
  CHECK(complaint(forward, [](auto& op) { op.residual = {}; }) ==
        "layernorm_forward: sum is given without residual: give both or neither");
  CHECK(complaint(forward, [](auto& op) { op.eps = 0; }) ==
        "layernorm_forward: eps = 0: expected a finite number above 0");
  CHECK(
      complaint(LayerNormForward{f32({6, 0}), f32({6}), f32({6}), {}, f32({6, 0}), {}, f32({0}), f32({0})}) ==
      "layernorm_forward: expected C >= 1 (C = 0 in x)");

  const LayerNormBackward backward{f32({6, 4}), f32({4}), f32({4}), f32({6, 4}),
                                   f32({6, 4}), f32({6}), f32({6}), f32({4})};
  CHECK(complaint(backward) == "");
  CHECK(complaint(backward, [](auto& op) { op.rstd = bf16({6}); }) ==
        "layernorm_backward: rstd [6] bf16: expected f32");
  CHECK(complaint(backward, [](auto& op) { op.dbias = f32({5}); }) ==
        "layernorm_backward: dbias [5] f32: expected shape [C] = [4] (C = 4 in dout)");
}

TEST_CASE("operand checks: rmsnorm") {
  const RmsNormForward forward{.out = f32({6, 4}),
                               .rstd = f32({6}),
                               .sum = f32({6, 4}),
                               .x = f32({6, 4}),
                               .residual = f32({6, 4}),
                               .weight = f32({4})};
  CHECK(complaint(forward) == "");
  CHECK(complaint(forward, [](auto& op) { op.sum = op.residual = {}; }) == "");
  CHECK(complaint(forward, [](auto& op) { op.sum = {}; }) ==
        "rmsnorm_forward: residual is given without sum: give both or neither");
  CHECK(complaint(forward, [](auto& op) { op.residual = {}; }) ==
        "rmsnorm_forward: sum is given without residual: give both or neither");
  CHECK(complaint(forward, [](auto& op) { op.eps = -1; }) ==
        "rmsnorm_forward: eps = -1: expected a finite number above 0");
  CHECK(complaint(forward, [](auto& op) { op.weight = bf16({4}); }) ==
        "rmsnorm_forward: weight [4] bf16: expected f32");
  CHECK(complaint(forward, [](auto& op) { op.rstd = f32({5}); }) ==
        "rmsnorm_forward: rstd [5] f32: expected shape [N] = [6] (N = 6 in x)");
  CHECK(complaint(RmsNormForward{f32({6, 0}), f32({6}), {}, f32({6, 0}), {}, f32({0})}) ==
        "rmsnorm_forward: expected C >= 1 (C = 0 in x)");

  const RmsNormBackward backward{f32({6, 4}), f32({4}), f32({6, 4}), f32({6, 4}), f32({6}), f32({4})};
  CHECK(complaint(backward) == "");
  CHECK(complaint(backward, [](auto& op) { op.rstd = bf16({6}); }) ==
        "rmsnorm_backward: rstd [6] bf16: expected f32");
  CHECK(complaint(backward, [](auto& op) { op.dweight = f32({5}); }) ==
        "rmsnorm_backward: dweight [5] f32: expected shape [C] = [4] (C = 4 in dout)");
  CHECK(complaint(backward, [](auto& op) { op.dsum = {}; }) == "rmsnorm_backward: dsum is missing");
}

TEST_CASE("operand checks: linear") {
  const LinearForward forward{
      .out = bf16({6, 3}), .x = bf16({6, 4}), .weight = bf16({3, 4}), .bias = bf16({3})};
  CHECK(complaint(forward) == "");
  CHECK(complaint(forward, [](auto& op) { op.bias = {}; }) == "");
  CHECK(complaint(forward, [](auto& op) {
          op.weight = bf16({4, 3});
        }) == "linear_forward: weight [4, 3] bf16: expected shape [O, I] = [4, 4] (I = 4 in x)");

  const LinearBackwardInput input{.dx = f32({6, 4}), .dout = f32({6, 3}), .weight = f32({3, 4})};
  CHECK(complaint(input) == "");
  CHECK(complaint(input, [](auto& op) {
          op.dx = f32({6, 3});
        }) == "linear_backward_input: dx [6, 3] f32: expected shape [N, I] = [6, 4] (I = 4 in weight)");

  const LinearBackwardWeight weight{
      .dweight = f32({3, 4}), .dbias = f32({3}), .dout = f32({6, 3}), .x = f32({6, 4})};
  CHECK(complaint(weight) == "");
  CHECK(complaint(weight, [](auto& op) {
          op.x = f32({7, 4});
        }) == "linear_backward_weight: x [7, 4] f32: expected shape [N, I] = [6, I] (N = 6 in dout)");
}

TEST_CASE("operand checks: linear with gelu") {
  const LinearGeluForward forward{.out = bf16({6, 3}),
                                  .projected = bf16({6, 3}),
                                  .x = bf16({6, 4}),
                                  .weight = bf16({3, 4}),
                                  .bias = bf16({3})};
  CHECK(complaint(forward) == "");
  CHECK(complaint(forward, [](auto& op) { op.bias = {}; }) == "");
  CHECK(complaint(forward, [](auto& op) { op.projected = {}; }) ==
        "linear_gelu_forward: projected is missing");
  CHECK(complaint(forward, [](auto& op) { op.bias = f32({3}); }) ==
        "linear_gelu_forward: bias [3] f32: expected bf16 like x");
  CHECK(complaint(forward, [](auto& op) {
          op.out = bf16({6, 4});
        }) == "linear_gelu_forward: out [6, 4] bf16: expected shape [N, O] = [6, 3] (O = 3 in weight)");

  const LinearGeluBackwardInput backward{
      .dprojected = f32({6, 4}), .dout = f32({6, 3}), .weight = f32({3, 4}), .projected = f32({6, 4})};
  CHECK(complaint(backward) == "");
  CHECK(complaint(backward,
                  [](auto& op) {
                    op.projected = f32({6, 3});
                  }) ==
        "linear_gelu_backward_input: projected [6, 3] f32: expected shape [N, I] = [6, 4] (I = 4 in weight)");
  CHECK(complaint(backward, [](auto& op) {
          op.dprojected = bf16({6, 4});
        }) == "linear_gelu_backward_input: dprojected [6, 4] bf16: expected f32 like dout");
}

TEST_CASE("operand checks: gelu and softplus take any shape, but the same") {
  CHECK(complaint(GeluForward{f32({2, 3, 5}), f32({2, 3, 5})}) == "");
  CHECK(complaint(GeluForward{f32({30}), f32({2, 3, 5})}) ==
        "gelu_forward: out [30] f32: expected shape [2, 3, 5] like x");
  CHECK(complaint(GeluBackward{f32({7}), f32({7}), f32({7})}) == "");
  CHECK(complaint(GeluBackward{f32({7}), f32({8}), f32({7})}) ==
        "gelu_backward: dout [8] f32: expected shape [7] like x");
  CHECK(complaint(SoftplusForward{f32({3}), f32({3})}) == "");
  CHECK(complaint(SoftplusForward{f32({3}), bf16({3})}) == "softplus_forward: x [3] bf16: expected f32");
  CHECK(complaint(SoftplusBackward{f32({3}), f32({3}), f32({3})}) == "");
  CHECK(complaint(SoftplusBackward{f32({3}), f32({3}), {}}) == "softplus_backward: x is missing");
}

TEST_CASE("operand checks: swiglu takes the halves of one tensor") {
  const Tensor both = bf16({6, 8});
  const SwigluForward forward{.out = bf16({6, 4}), .gate = both.slice(1, 0, 4), .up = both.slice(1, 4, 4)};
  CHECK(complaint(forward) == "");
  CHECK(complaint(forward, [&](auto& op) { op.out = both.slice(1, 0, 4); }) ==
        "swiglu_forward: out [6, 4] bf16: expected a contiguous tensor");
  CHECK(complaint(forward, [](auto& op) {
          op.up = bf16({6, 5});
        }) == "swiglu_forward: up [6, 5] bf16: expected shape [N, F] = [6, 4] (F = 4 in gate)");
  CHECK(complaint(forward, [](auto& op) {
          op.up = f32({6, 4});
        }) == "swiglu_forward: up [6, 4] f32: expected bf16 like gate");
  CHECK(complaint(forward, [](auto& op) {
          op.gate = bf16({6, 4, 2}).select(2, 0);
        }) == "swiglu_forward: gate [6, 4] bf16: expected stride 1 in the last dimension, not 2");

  const SwigluBackward backward{.dgate = both.slice(1, 0, 4),
                                .dup = both.slice(1, 4, 4),
                                .dout = bf16({6, 4}),
                                .gate = forward.gate,
                                .up = forward.up};
  CHECK(complaint(backward) == "");
  CHECK(complaint(backward, [](auto& op) { op.dup = {}; }) == "swiglu_backward: dup is missing");
  CHECK(complaint(backward, [](auto& op) {
          op.gate = bf16({7, 4});
        }) == "swiglu_backward: gate [7, 4] bf16: expected shape [N, F] = [6, 4] (N = 6 in dout)");
}

TEST_CASE("operand checks: fill and cast take any shape, f32 or bf16") {
  CHECK(complaint(Fill{f32({2, 3, 5}), 1}) == "");
  CHECK(complaint(Fill{bf16({7}), 1}) == "");
  CHECK(complaint(Fill{i32({7}), 1}) == "fill: out [7] i32: expected f32 or bf16");
  CHECK(complaint(Fill{{}, 1}) == "fill: out is missing");
  CHECK(complaint(Cast{f32({7}), bf16({7})}) == "");
  CHECK(complaint(Cast{bf16({2, 3}), bf16({2, 3})}) == "");
  CHECK(complaint(Cast{bf16({6}), f32({2, 3})}) == "cast: out [6] bf16: expected shape [2, 3] like x");
  CHECK(complaint(Cast{bf16({6}), f64({6})}) == "cast: x [6] f64: expected f32 or bf16");
}

TEST_CASE("operand checks: fourier table and sink") {
  const FourierTable table{.table = f32({T, R, 2}), .frequency = f64({R}), .positions = i32({T, 2})};
  CHECK(complaint(table) == "");
  CHECK(complaint(table, [](auto& op) { op.frequency = f32({R}); }) == "");
  CHECK(complaint(table, [](auto& op) { op.frequency = bf16({R}); }) ==
        "fourier_table: frequency [2] bf16: expected f32 or f64");
  CHECK(complaint(table, [](auto& op) {
          op.positions = i32({T, 3});
        }) == "fourier_table: expected 1 or 2 coordinates a position (A = 3 in positions)");
  CHECK(complaint(table, [](auto& op) {
          op.table = f32({T, R, 3});
        }) == "fourier_table: table [5, 2, 3] f32: expected shape [T, R, 2] = [5, 2, 2]");

  const SinkFeatures features{
      .features = f32({T, 8}), .frequency = f64({3}), .positions = i32({T, 1}), .train_length = 16};
  CHECK(complaint(features) == "");
  CHECK(
      complaint(features, [](auto& op) {
        op.features = f32({T, 6});
      }) == "sink_features: features [5, 6] f32: expected shape [T, 2M+2] = [5, 8] (2M+2 = 8 in frequency)");
  CHECK(complaint(features, [](auto& op) { op.train_length = 0; }) ==
        "sink_features: train_length = 0: expected at least 1 token");

  const SinkForward forward{f32({H, T}), f32({T, 7}), f32({T, 6}), f32({7, 6}),
                            f32({7}),    f32({H, 7}), f32({H})};
  CHECK(complaint(forward) == "");
  CHECK(complaint(forward, [](auto& op) {
          op.key_bias = f32({T, H});
        }) == "sink_forward: key_bias [5, 3] f32: expected shape [H, T] = [3, 5] (H = 3 in w2)");

  CHECK(complaint(sink_backward()) == "");
  CHECK(complaint(sink_backward(), [](auto& op) { op.dkey_bias = f32({B, 2 * H, T}); }) == "");
  CHECK(complaint(sink_backward(), [](auto& op) {
          op.dkey_bias = f32({B, 4, T});
        }) == "sink_backward: expected H_q a multiple of H (H_q = 4 in dkey_bias, H = 3 in w2)");
  CHECK(complaint(sink_backward(), [](auto& op) { op.dkey_bias_sum = {}; }) ==
        "sink_backward: dkey_bias_sum is missing");
}

TEST_CASE("operand checks: prior lanes forward") {
  const PriorLanesForward op = prior_lanes_forward();
  CHECK(complaint(op) == "");
  CHECK(complaint(op, [](auto& o) { o.q = {}; }) == "");
  CHECK(complaint(op, [](auto& o) { o.q = o.k = {}; }) == "prior_lanes_forward: expected q or k or both");
  CHECK(complaint(op, [](auto& o) { o.content_dim = 11; }) ==
        "prior_lanes_forward: content_dim = 11: expected 1 <= content_dim <= d_h - 2R - 2 (d_h = 16 in q, R "
        "= 2 in alpha)");
  CHECK(complaint(op, [](auto& o) { o.first_position = 4; }) ==
        "prior_lanes_forward: first_position = 4: expected 0 <= first_position <= T_max - T (T_max = 8 in "
        "fourier, T = 5 in q)");
  CHECK(complaint(op, [](auto& o) { o.first_position = -1; }) ==
        "prior_lanes_forward: first_position = -1: expected 0 <= first_position <= T_max - T (T_max = 8 in "
        "fourier, T = 5 in q)");
  CHECK(complaint(op, [](auto& o) { o.scale = -1; }) ==
        "prior_lanes_forward: scale = -1: expected a finite number above 0");
}

TEST_CASE("operand checks: rope") {
  CHECK(complaint(rope()) == "");
  CHECK(complaint(rope(), [](auto& o) { o.q = {}; }) == "");
  CHECK(complaint(rope(), [](auto& o) { o.k = {}; }) == "");
  CHECK(complaint(rope(), [](auto& o) { o.q = o.k = {}; }) == "rope: expected q or k or both");
  CHECK(complaint(rope(), [](auto& o) {
          o.k = bf16({B, T, H, d_h});
        }) == "rope: k [2, 5, 3, 16] bf16: expected f32 like q");
  CHECK(complaint(rope(), [](auto& o) {
          o.k = f32({B, T, H, 14});
        }) == "rope: k [2, 5, 3, 14] f32: expected shape [B, T, H_k, d_h] = [2, 5, 3, 16] (d_h = 16 in q)");
  CHECK(complaint(rope(), [](auto& o) {
          o.q = f32({B, T, H, d_h, 2}).select(4, 0);
        }) == "rope: q [2, 5, 3, 16] f32: expected stride 1 in the last dimension, not 2");
  CHECK(complaint(rope(), [](auto& o) {
          o.fourier = f32({8, 7, 2});
        }) == "rope: expected d_h = 2 (d_h/2) (d_h = 16 in q, d_h/2 = 7 in fourier)");
  CHECK(complaint(rope(), [](auto& o) { o.first_position = 4; }) ==
        "rope: first_position = 4: expected 0 <= first_position <= T_max - T (T_max = 8 in fourier, T = 5 in "
        "q)");
  CHECK(complaint(rope(), [](auto& o) { o.first_position = -1; }) ==
        "rope: first_position = -1: expected 0 <= first_position <= T_max - T (T_max = 8 in fourier, T = 5 "
        "in q)");
}

TEST_CASE("operand checks: prior lanes backward") {
  const PriorLanesBackward op = prior_lanes_backward();
  CHECK(complaint(op) == "");
  CHECK(complaint(op, [](auto& o) { o.dlambda = o.dslope = o.dfrequency = o.dk_lanes = {}; }) == "");
  CHECK(complaint(op, [](auto& o) { o.dslope = {}; }) ==
        "prior_lanes_backward: dlambda is given without dslope: give both or neither");
  CHECK(complaint(op, [](auto& o) { o.dk_lanes = {}; }) ==
        "prior_lanes_backward: dfrequency is given without dk_lanes: give both or neither");
  CHECK(complaint(op,
                  [](auto& o) {
                    o.dq_lanes = f32({B, H, T, 6});
                  }) ==
        "prior_lanes_backward: dq_lanes [2, 3, 5, 6] f32: expected shape [B, H, T, 2R] = [2, 3, 5, 4] (2R = "
        "4 in alpha)");
  CHECK(complaint(op, [](auto& o) { o.dk_lanes = f32({B, 1, T, 2 * R}); }) == "");
  CHECK(complaint(op, [](auto& o) {
          o.dk_lanes = f32({B, 2, T, 2 * R});
        }) == "prior_lanes_backward: expected H a multiple of H_k (H = 3 in alpha, H_k = 2 in dk_lanes)");
}

TEST_CASE("operand checks: attention forward") {
  const AttentionForward op = attention_forward();
  CHECK(complaint(op) == "");
  CHECK(complaint(op, [](auto& o) { o.slope = {}; }) == "");
  CHECK(complaint(op, [](auto& o) {
          o.v = f32({B, T, H, d_h, 2}).select(4, 0);
        }) == "attention_forward: v [2, 5, 3, 16] f32: expected stride 1 in the last dimension, not 2");
  CHECK(complaint(op, [](auto& o) {
          o.out = f32({B, T, 2 * H, d_h}).slice(2, 0, H);
        }) == "attention_forward: out [2, 5, 3, 16] f32: expected a contiguous tensor");
  CHECK(complaint(op,
                  [](auto& o) {
                    o.v = f32({B, T + 1, H, d_h});
                  }) ==
        "attention_forward: v [2, 6, 3, 16] f32: expected shape [B, T_k, H_k, d_h] = [2, 5, 3, 16] (T_k = 5 "
        "in k)");
  CHECK(complaint(op, [](auto& o) {
          o.k = o.v = f32({B, 4, H, d_h});
        }) == "attention_forward: expected T_q <= T_k in causal attention (T_q = 5 in q, T_k = 4 in k)");
  CHECK(complaint(op, [](auto& o) {
          o.k = o.v = f32({B, 4, H, d_h});
          o.causal = false;
        }) == "");
  CHECK(complaint(op, [](auto& o) {
          o.k = o.v = f32({B, 0, H, d_h});
          o.causal = false;
        }) == "attention_forward: expected T_k >= 1 (T_k = 0 in k)");
  CHECK(complaint(op, [](auto& o) { o.scale = 0; }) ==
        "attention_forward: scale = 0: expected a finite number above 0");
}

TEST_CASE("operand checks: attention with a key bias and grouped queries") {
  AttentionForward op = attention_forward();
  op.key_bias = f64({B, H, T});
  CHECK(complaint(op) == "");
  CHECK(complaint(op, [](auto& o) { o.key_bias = f64({B, H, T + 1}).slice(2, 0, T); }) == "");
  CHECK(complaint(op, [](auto& o) {
          o.key_bias = f32({B, H, T});
        }) == "attention_forward: key_bias [2, 3, 5] f32: expected f64");
  CHECK(complaint(op,
                  [](auto& o) {
                    o.key_bias = f64({B, H, T + 1});
                  }) ==
        "attention_forward: key_bias [2, 3, 6] f64: expected shape [B, H, T_k] = [2, 3, 5] (T_k = 5 in k)");
  CHECK(complaint(op, [](auto& o) { o.causal = false; }) ==
        "attention_forward: expected causal = true with key_bias");
  CHECK(complaint(op, [](auto& o) { o.k = o.v = f32({B, T, 1, d_h}); }) == "");
  CHECK(complaint(op, [](auto& o) {
          o.k = o.v = f32({B, T, 2, d_h});
        }) == "attention_forward: expected H a multiple of H_k (H = 3 in q, H_k = 2 in k)");

  AttentionBackward backward = attention_backward();
  backward.k = backward.v = backward.dk = backward.dv = f32({B, T, 1, d_h});
  backward.dk_lanes = f32({B, 1, T, 2 * R});
  backward.key_bias = op.key_bias;
  CHECK(complaint(backward) == "");
  CHECK(complaint(backward,
                  [](auto& o) {
                    o.dk_lanes = f32({B, H, T, 2 * R});
                  }) ==
        "attention_backward: dk_lanes [2, 3, 5, 4] f32: expected shape [B, H_k, T_k, 2R] = [2, 1, 5, 4] (H_k "
        "= 1 in k)");
}

TEST_CASE("operand checks: forget gates and their key bias") {
  const ForgetGatesForward gates{f32({6, 3}), bf16({6, 4}), f32({3, 4}), f32({3})};
  CHECK(complaint(gates) == "");
  CHECK(complaint(gates, [](auto& o) {
          o.gate = bf16({6, 3});
        }) == "forget_gates_forward: gate [6, 3] bf16: expected f32");
  const ForgetGatesBackward gates_backward{bf16({6, 4}), f32({3, 4}),  f32({3}),
                                           f32({6, 3}),  bf16({6, 4}), f32({3, 4})};
  CHECK(complaint(gates_backward) == "");
  CHECK(complaint(gates_backward, [](auto& o) {
          o.dx = f32({6, 4});
        }) == "forget_gates_backward: dx [6, 4] f32: expected bf16 like x");
  const ForgetBiasForward bias{f64({B, H, 8}), f32({B, T, H}), 3};
  CHECK(complaint(bias) == "");
  CHECK(
      complaint(bias, [](auto& o) { o.first_position = 4; }) ==
      "forget_bias_forward: first_position = 4: expected 0 <= first_position <= P - T (P = 8 in key_bias, T "
      "= 5 in gate)");
  CHECK(complaint(bias, [](auto& o) {
          o.key_bias = f32({B, H, 8});
        }) == "forget_bias_forward: key_bias [2, 3, 8] f32: expected f64");
  const ForgetBiasBackward bias_backward{f32({B, T, H}), f32({B, H, T}), f32({B, T, H})};
  CHECK(complaint(bias_backward) == "");
  CHECK(complaint(bias_backward,
                  [](auto& o) {
                    o.dgate = f32({B, H, T});
                  }) ==
        "forget_bias_backward: dgate [2, 3, 5] f32: expected shape [B, T, H] = [2, 5, 3] (T = 5 in gate)");
}

TEST_CASE("operand checks: attention backward") {
  const AttentionBackward op = attention_backward();
  CHECK(complaint(op) == "");
  CHECK(complaint(op, [](auto& o) {
          o.dq_lanes = o.dk_lanes = o.dkey_bias = o.dslope = o.slope = {};
          o.content_dim = d_h;
        }) == "");
  CHECK(complaint(op, [](auto& o) { o.delta = {}; }) == "attention_backward: delta is missing");
  CHECK(complaint(op, [](auto& o) { o.content_dim = 0; }) ==
        "attention_backward: content_dim = 0: expected 1 <= content_dim <= d_h - 2R (d_h = 16 in q, 2R = 4 "
        "in dq_lanes)");
  CHECK(complaint(op, [](auto& o) { o.content_dim = 13; }) ==
        "attention_backward: content_dim = 13: expected 1 <= content_dim <= d_h - 2R (d_h = 16 in q, 2R = 4 "
        "in dq_lanes)");
  CHECK(complaint(op, [](auto& o) {
          o.dq_lanes = o.dk_lanes = f32({B, H, T, 3});
        }) == "attention_backward: expected an even number of lanes (2R = 3 in dq_lanes)");
  CHECK(complaint(op, [](auto& o) {
          o.dkey_bias = f32({H, T});
        }) == "attention_backward: dkey_bias [3, 5] f32: expected shape [B, H, T_k] = [2, 3, 5]");
}

TEST_CASE("operand checks: no tokens are allowed") {
  CHECK(complaint(EmbeddingForward{f32({0, 4}), i32({0}), f32({10, 4})}) == "");
  CHECK(complaint(LinearForward{f32({0, 3}), f32({0, 4}), f32({3, 4}), {}}) == "");
  CHECK(complaint(GeluForward{Tensor::contiguous(nullptr, DType::f32, {0, 4}), f32({0, 4})}) == "");
}
