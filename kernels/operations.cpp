// Checks of each operation's operands, as documented in operations.h. The symbols of extents are explained
// there under "Conventions".
#include "kernels/operations.h"

#include <cmath>
#include <string>

#include "kernels/signature.h"

namespace goat {

namespace {
using enum Element;

void require_coordinates(const Signature& s) {
  s.require(s["A"] == 1 || s["A"] == 2, "1 or 2 coordinates a position", {"A"});
}

void require_positive(const Signature& s, const char* field, float value) {
  s.scalar(field, value, std::isfinite(value) && value > 0, "a finite number above 0");
}

void require_whole_nodes(const Signature& s, int nodes) {
  s.scalar("nodes", std::int64_t{nodes}, nodes >= 1 && s["N"] % nodes == 0, "a divisor of N", {"N"});
}

// Every query must see at least one key, because a softmax over no keys is undefined.
void require_keys(const Signature& s, bool causal) {
  if (causal) s.require(s["T_q"] <= s["T_k"], "T_q <= T_k in causal attention", {"T_q", "T_k"});
  s.require(s["T_k"] >= 1 || s["T_q"] == 0, "T_k >= 1", {"T_k"});
}

// Whether each of `groups` heads stands for equally many of `heads` heads.
void require_groups(const Signature& s, const char* heads, const char* groups, const char* rule) {
  s.require(s[groups] == 0 ? s[heads] == 0 : s[heads] % s[groups] == 0, rule, {heads, groups});
}

// The checks that LayerNorm and RMSNorm share. Defines N and C.
template <class NormForward>
void check_norm_forward(Signature& s, const NormForward& op) {
  s.contiguous("x", op.x, activation, {"N", "C"});
  s.together("residual", op.residual, "sum", op.sum);
  if (op.residual) {
    s.contiguous("residual", op.residual, activation, {"N", "C"});
    s.contiguous(written("sum"), op.sum, activation, {"N", "C"});
  }
  s.contiguous("weight", op.weight, f32, {"C"});
  s.contiguous(written("out"), op.out, activation, {"N", "C"});
  s.contiguous(written("rstd"), op.rstd, f32, {"N"});
  s.require(s["C"] >= 1, "C >= 1", {"C"});
  require_positive(s, "eps", op.eps);
}

template <class NormBackward>
void check_norm_backward(Signature& s, const NormBackward& op) {
  s.contiguous("dout", op.dout, activation, {"N", "C"});
  s.contiguous("sum", op.sum, activation, {"N", "C"});
  s.contiguous("rstd", op.rstd, f32, {"N"});
  s.contiguous("weight", op.weight, f32, {"C"});
  s.contiguous(written("dsum"), op.dsum, activation, {"N", "C"});
  s.contiguous(written("dweight"), op.dweight, f32, {"C"});
  s.require(s["C"] >= 1, "C >= 1", {"C"});
}

// Checks q, k, v, slope, key_bias and scale of AttentionForward and AttentionBackward. Defines B, T_q, T_k,
// H, H_k and d_h.
template <class Attention>
void check_attention_inputs(Signature& s, const Attention& op) {
  s.strided("q", op.q, activation, {"B", "T_q", "H", "d_h"});
  s.strided("k", op.k, activation, {"B", "T_k", "H_k", "d_h"});
  s.strided("v", op.v, activation, {"B", "T_k", "H_k", "d_h"});
  s.require(s["d_h"] >= 1, "d_h >= 1", {"d_h"});
  require_groups(s, "H", "H_k", "H a multiple of H_k");
  if (op.slope) s.contiguous("slope", op.slope, f32, {"H"});
  if (op.key_bias) {
    s.strided("key_bias", op.key_bias, f64, {"B", "H", "T_k"});
    s.require(op.causal, "causal = true with key_bias");
  }
  require_positive(s, "scale", op.scale);
  require_keys(s, op.causal);
}
}  // namespace

void check(const EmbeddingForward& op) {
  Signature s("embedding_forward");
  s.contiguous("table", op.table, weight, {"V_p", "C"});
  s.contiguous("tokens", op.tokens, i32, {"N"});
  s.contiguous(written("out"), op.out, activation, {"N", "C"});
}

void check(const EmbeddingBackward& op) {
  Signature s("embedding_backward");
  s.contiguous("dout", op.dout, activation, {"N", "C"});
  s.contiguous("tokens", op.tokens, i32, {"N"});
  s.contiguous(written("dtable"), op.dtable, f32, {"V_p", "C"});
}

void check(const AddPositions& op) {
  Signature s("add_positions");
  s.contiguous(written("stream"), op.stream, activation, {"B", "T", "C"});
  s.contiguous("table", op.table, f32, {"P", "C"});
  s.scalar("first_position", op.first_position,
           op.first_position >= 0 && op.first_position <= s["P"] - s["T"], "0 <= first_position <= P - T",
           {"P", "T"});
}

void check(const AddPositionsBackward& op) {
  Signature s("add_positions_backward");
  s.contiguous("dstream", op.dstream, activation, {"B", "T", "C"});
  s.contiguous(written("dtable"), op.dtable, f32, {"P", "C"});
  s.require(s["T"] <= s["P"], "T <= P", {"T", "P"});
}

void check(const LayerNormForward& op) {
  Signature s("layernorm_forward");
  check_norm_forward(s, op);
  s.contiguous("bias", op.bias, f32, {"C"});
  s.contiguous(written("mean"), op.mean, f32, {"N"});
}

void check(const LayerNormBackward& op) {
  Signature s("layernorm_backward");
  check_norm_backward(s, op);
  s.contiguous("mean", op.mean, f32, {"N"});
  s.contiguous(written("dbias"), op.dbias, f32, {"C"});
}

void check(const RmsNormForward& op) {
  Signature s("rmsnorm_forward");
  check_norm_forward(s, op);
}

void check(const RmsNormBackward& op) {
  Signature s("rmsnorm_backward");
  check_norm_backward(s, op);
}

namespace {
void check_linear_extents(const Signature& s) {
  s.require(s["I"] >= 1 && s["O"] >= 1, "I >= 1 and O >= 1", {"I", "O"});
}

// Of LinearForward and LinearGeluForward.
void check_linear_forward(Signature& s, const auto& op) {
  s.contiguous("x", op.x, activation, {"N", "I"});
  s.contiguous("weight", op.weight, weight, {"O", "I"});
  if (op.bias) s.contiguous("bias", op.bias, weight, {"O"});
  s.contiguous(written("out"), op.out, activation, {"N", "O"});
  check_linear_extents(s);
}

// Of LinearBackwardInput and LinearGeluBackwardInput.
void check_linear_backward_input(Signature& s, const auto& op) {
  s.contiguous("dout", op.dout, activation, {"N", "O"});
  s.contiguous("weight", op.weight, weight, {"O", "I"});
  check_linear_extents(s);
}
}  // namespace

void check(const LinearForward& op) {
  Signature s("linear_forward");
  check_linear_forward(s, op);
}

void check(const LinearBackwardInput& op) {
  Signature s("linear_backward_input");
  check_linear_backward_input(s, op);
  s.contiguous(written("dx"), op.dx, activation, {"N", "I"});
}

void check(const LinearBackwardWeight& op) {
  Signature s("linear_backward_weight");
  s.contiguous("dout", op.dout, activation, {"N", "O"});
  s.contiguous("x", op.x, activation, {"N", "I"});
  s.contiguous(written("dweight"), op.dweight, f32, {"O", "I"});
  if (op.dbias) s.contiguous(written("dbias"), op.dbias, f32, {"O"});
  check_linear_extents(s);
}

void check(const GeluForward& op) {
  Signature s("gelu_forward");
  s.elementwise("x", op.x, activation);
  s.elementwise(written("out"), op.out, activation);
}

void check(const GeluBackward& op) {
  Signature s("gelu_backward");
  s.elementwise("x", op.x, activation);
  s.elementwise("dout", op.dout, activation);
  s.elementwise(written("dx"), op.dx, activation);
}

void check(const LinearGeluForward& op) {
  Signature s("linear_gelu_forward");
  check_linear_forward(s, op);
  s.contiguous(written("projected"), op.projected, activation, {"N", "O"});
}

void check(const LinearGeluBackwardInput& op) {
  Signature s("linear_gelu_backward_input");
  check_linear_backward_input(s, op);
  s.contiguous("projected", op.projected, activation, {"N", "I"});
  s.contiguous(written("dprojected"), op.dprojected, activation, {"N", "I"});
}

void check(const SwigluForward& op) {
  Signature s("swiglu_forward");
  s.strided("gate", op.gate, activation, {"N", "F"});
  s.strided("up", op.up, activation, {"N", "F"});
  s.contiguous(written("out"), op.out, activation, {"N", "F"});
}

void check(const SwigluBackward& op) {
  Signature s("swiglu_backward");
  s.contiguous("dout", op.dout, activation, {"N", "F"});
  s.strided("gate", op.gate, activation, {"N", "F"});
  s.strided("up", op.up, activation, {"N", "F"});
  s.strided(written("dgate"), op.dgate, activation, {"N", "F"});
  s.strided(written("dup"), op.dup, activation, {"N", "F"});
}

void check(const Rope& op) {
  Signature s("rope");
  s.require(op.q || op.k, "q or k or both");
  if (op.q) s.strided(written("q"), op.q, activation, {"B", "T", "H", "d_h"});
  if (op.k) s.strided(written("k"), op.k, activation, {"B", "T", "H_k", "d_h"});
  s.contiguous("fourier", op.fourier, f32, {"T_max", "d_h/2", "2"});
  s.require(s["d_h"] == 2 * s["d_h/2"], "d_h = 2 (d_h/2)", {"d_h", "d_h/2"});
  s.scalar("first_position", op.first_position,
           op.first_position >= 0 && op.first_position <= s["T_max"] - s["T"],
           "0 <= first_position <= T_max - T", {"T_max", "T"});
}

void check(const FourierTable& op) {
  Signature s("fourier_table");
  s.contiguous("frequency", op.frequency, f32_or_f64, {"R"});
  s.contiguous("positions", op.positions, i32, {"T", "A"});
  s.contiguous(written("table"), op.table, f32, {"T", "R", "2"});
  require_coordinates(s);
}

void check(const SinkFeatures& op) {
  Signature s("sink_features");
  s.contiguous("frequency", op.frequency, f64, {"M"});
  s.define("2M+2", 2 * s["M"] + 2, "frequency");
  s.contiguous("positions", op.positions, i32, {"T", "A"});
  s.contiguous(written("features"), op.features, f32, {"T", "2M+2"});
  require_coordinates(s);
  s.scalar("train_length", op.train_length, op.train_length >= 1, "at least 1 token");
}

void check(const SinkForward& op) {
  Signature s("sink_forward");
  s.contiguous("features", op.features, f32, {"T", "F"});
  s.contiguous("w1", op.w1, f32, {"n", "F"});
  s.contiguous("b1", op.b1, f32, {"n"});
  s.contiguous("w2", op.w2, f32, {"H", "n"});
  s.contiguous("bump", op.bump, f32, {"H"});
  s.contiguous(written("hidden"), op.hidden, f32, {"T", "n"});
  s.contiguous(written("key_bias"), op.key_bias, f32, {"H", "T"});
}

void check(const SinkBackward& op) {
  Signature s("sink_backward");
  s.contiguous("features", op.features, f32, {"T", "F"});
  s.contiguous("hidden", op.hidden, f32, {"T", "n"});
  s.contiguous("w2", op.w2, f32, {"H", "n"});
  s.contiguous("dkey_bias", op.dkey_bias, f32, {"B", "H_q", "T"});
  require_groups(s, "H_q", "H", "H_q a multiple of H");
  s.contiguous(written("dkey_bias_sum"), op.dkey_bias_sum, f32, {"H", "T"});
  s.contiguous(written("dw1"), op.dw1, f32, {"n", "F"});
  s.contiguous(written("db1"), op.db1, f32, {"n"});
  s.contiguous(written("dw2"), op.dw2, f32, {"H", "n"});
  s.contiguous(written("dbump"), op.dbump, f32, {"H"});
}

void check(const PriorLanesForward& op) {
  Signature s("prior_lanes_forward");
  s.require(op.q || op.k, "q or k or both");
  if (op.q) s.strided(written("q"), op.q, activation, {"B", "T", "H", "d_h"});
  if (op.k) s.strided(written("k"), op.k, activation, {"B", "T", "H_k", "d_h"});
  s.contiguous("alpha", op.alpha, f32, {"H", "R"});
  s.contiguous("beta", op.beta, f32, {"H", "R"});
  s.contiguous("fourier", op.fourier, f32, {"T_max", "R", "2"});
  s.contiguous("key_bias", op.key_bias, f32, {"H_k", "T_max"});
  require_groups(s, "H", "H_k", "H a multiple of H_k");
  s.scalar("content_dim", op.content_dim, op.content_dim >= 1 && op.content_dim <= s["d_h"] - 2 * s["R"] - 2,
           "1 <= content_dim <= d_h - 2R - 2", {"d_h", "R"});
  s.scalar("first_position", op.first_position,
           op.first_position >= 0 && op.first_position <= s["T_max"] - s["T"],
           "0 <= first_position <= T_max - T", {"T_max", "T"});
  require_positive(s, "scale", op.scale);
}

void check(const PriorLanesBackward& op) {
  Signature s("prior_lanes_backward");
  s.contiguous("alpha", op.alpha, f32, {"H", "R"});
  s.contiguous("beta", op.beta, f32, {"H", "R"});
  s.define("2R", 2 * s["R"], "alpha");
  s.contiguous("fourier", op.fourier, f32, {"T", "R", "2"});
  s.contiguous("positions", op.positions, i32, {"T", "A"});
  s.contiguous("dq_lanes", op.dq_lanes, f32, {"B", "H", "T", "2R"});
  s.contiguous(written("dalpha"), op.dalpha, f32, {"H", "R"});
  s.contiguous(written("dbeta"), op.dbeta, f32, {"H", "R"});
  s.together("dlambda", op.dlambda, "dslope", op.dslope);
  if (op.dlambda) {
    s.contiguous("dslope", op.dslope, f32, {"B", "H", "T"});
    s.contiguous(written("dlambda"), op.dlambda, f32, {"H"});
  }
  s.together("dfrequency", op.dfrequency, "dk_lanes", op.dk_lanes);
  if (op.dfrequency) {
    s.contiguous("dk_lanes", op.dk_lanes, f32, {"B", "H_k", "T", "2R"});
    require_groups(s, "H", "H_k", "H a multiple of H_k");
    s.contiguous(written("dfrequency"), op.dfrequency, f32, {"R"});
  }
  require_coordinates(s);
}

void check(const SoftplusForward& op) {
  Signature s("softplus_forward");
  s.elementwise("x", op.x, f32);
  s.elementwise(written("out"), op.out, f32);
}

void check(const SoftplusBackward& op) {
  Signature s("softplus_backward");
  s.elementwise("x", op.x, f32);
  s.elementwise("dout", op.dout, f32);
  s.elementwise(written("dx"), op.dx, f32);
}

void check(const ForgetGatesForward& op) {
  Signature s("forget_gates_forward");
  s.contiguous("x", op.x, activation, {"N", "C"});
  s.contiguous("weight", op.weight, f32, {"H", "C"});
  s.contiguous("bias", op.bias, f32, {"H"});
  s.contiguous(written("gate"), op.gate, f32, {"N", "H"});
}

void check(const ForgetGatesBackward& op) {
  Signature s("forget_gates_backward");
  s.contiguous("x", op.x, activation, {"N", "C"});
  s.contiguous("weight", op.weight, f32, {"H", "C"});
  s.contiguous("dgate", op.dgate, f32, {"N", "H"});
  s.contiguous(written("dx"), op.dx, activation, {"N", "C"});
  s.contiguous(written("dweight"), op.dweight, f32, {"H", "C"});
  s.contiguous(written("dbias"), op.dbias, f32, {"H"});
}

void check(const ForgetBiasForward& op) {
  Signature s("forget_bias_forward");
  s.contiguous("gate", op.gate, f32, {"B", "T", "H"});
  s.strided(written("key_bias"), op.key_bias, f64, {"B", "H", "P"});
  s.scalar("first_position", op.first_position,
           op.first_position >= 0 && op.first_position <= s["P"] - s["T"], "0 <= first_position <= P - T",
           {"P", "T"});
}

void check(const ForgetBiasBackward& op) {
  Signature s("forget_bias_backward");
  s.contiguous("gate", op.gate, f32, {"B", "T", "H"});
  s.contiguous("dkey_bias", op.dkey_bias, f32, {"B", "H", "T"});
  s.contiguous(written("dgate"), op.dgate, f32, {"B", "T", "H"});
}

void check(const AttentionForward& op) {
  Signature s("attention_forward");
  check_attention_inputs(s, op);
  s.contiguous(written("out"), op.out, activation, {"B", "T_q", "H", "d_h"});
  s.contiguous(written("lse"), op.lse, f32, {"B", "H", "T_q"});
}

void check(const AttentionBackward& op) {
  Signature s("attention_backward");
  check_attention_inputs(s, op);
  s.contiguous("out", op.out, activation, {"B", "T_q", "H", "d_h"});
  s.contiguous("lse", op.lse, f32, {"B", "H", "T_q"});
  s.contiguous("dout", op.dout, activation, {"B", "T_q", "H", "d_h"});
  s.contiguous(written("delta"), op.delta, f32, {"B", "H", "T_q"});
  s.strided(written("dq"), op.dq, activation, {"B", "T_q", "H", "d_h"});
  s.strided(written("dk"), op.dk, activation, {"B", "T_k", "H_k", "d_h"});
  s.strided(written("dv"), op.dv, activation, {"B", "T_k", "H_k", "d_h"});
  if (op.dq_lanes) s.contiguous(written("dq_lanes"), op.dq_lanes, f32, {"B", "H", "T_q", "2R"});
  if (op.dk_lanes) s.contiguous(written("dk_lanes"), op.dk_lanes, f32, {"B", "H_k", "T_k", "2R"});
  if (op.dkey_bias) s.contiguous(written("dkey_bias"), op.dkey_bias, f32, {"B", "H", "T_k"});
  if (op.dslope) s.contiguous(written("dslope"), op.dslope, f32, {"B", "H", "T_k"});
  s.require(s["2R"] % 2 == 0, "an even number of lanes", {"2R"});
  s.scalar("content_dim", op.content_dim, op.content_dim >= 1 && op.content_dim <= s["d_h"] - s["2R"],
           "1 <= content_dim <= d_h - 2R", {"d_h", "2R"});
}

void check(const CrossEntropy& op) {
  Signature s("cross_entropy");
  s.contiguous(op.backward ? written("logits") : "logits", op.logits, activation, {"N", "V_p"});
  s.contiguous("targets", op.targets, i32, {"N"});
  s.contiguous(written("losses"), op.losses, f32, {"N"});
  if (op.weights) s.contiguous("weights", op.weights, f32, {"N"});
  s.scalar("weight", op.weight, std::isfinite(op.weight), "a finite number");
  s.scalar("vocab", op.vocab, op.vocab >= 1 && op.vocab <= s["V_p"], "1 <= vocab <= V_p", {"V_p"});
}

void check(const AddLoss& op) {
  Signature s("add_loss");
  s.given(written("sum"), op.sum);
  s.contiguous("losses", op.losses, f32, {"N"});
  if (op.weights) s.contiguous("weights", op.weights, f32, {"N"});
  s.scalar("weight", op.weight, std::isfinite(op.weight), "a finite number");
}

void check(const SquaredSums& op) {
  Signature s("squared_sums");
  s.elementwise("x", op.x, f32);
  s.define("chunks", (op.x.elements() + SquaredSums::chunk - 1) / SquaredSums::chunk, "x");
  s.contiguous(written("sums"), op.sums, f64, {"chunks"});
}

void check(const StepVerdict& op) {
  Signature s("step_verdict");
  s.given(written("state"), op.state);
  s.strided("losses", op.losses, f64, {"N", "k"});
  require_whole_nodes(s, op.nodes);
  if (op.flags) s.strided("flags", op.flags, f64, {"N", "F"});
  s.require(!op.flags || s["F"] == StepState::most_flags, "F = 2", {"F"});
  s.scalar("clip", op.clip, std::isfinite(op.clip) && op.clip >= 0, "a finite number, 0 for no clipping");
  std::int64_t least = 0;
  for (std::size_t i = 0; i < op.squares.size(); ++i) {
    const std::string field = "squares[" + std::to_string(i) + "]", sums = field + ".sums";
    const std::int64_t first = op.squares[i].first;
    Signature own("step_verdict");
    own.strided(sums.c_str(), op.squares[i].sums, f64, {"N", "c"});
    require_whole_nodes(own, op.nodes);
    s.scalar((field + ".first").c_str(), first, first >= least, "at least 0 and at least the one before");
    least = first;
  }
}

void check(const AdamW& op) {
  Signature s("adamw");
  s.given("state", op.state);
  s.elementwise(written("param"), op.param, real);
  const bool needs_master = op.param.dtype == DType::bf16;
  if (op.master || needs_master) s.elementwise(written("master"), op.master, f32);
  s.elementwise(written("m"), op.m, f32);
  s.elementwise(written("v"), op.v, f32);
  s.elementwise("grad", op.grad, f32);
  s.scalar("beta1", op.beta1, op.beta1 >= 0 && op.beta1 < 1, "0 <= beta1 < 1");
  s.scalar("beta2", op.beta2, op.beta2 >= 0 && op.beta2 < 1, "0 <= beta2 < 1");
  require_positive(s, "eps", op.eps);
  s.scalar("weight_decay", op.weight_decay, std::isfinite(op.weight_decay) && op.weight_decay >= 0,
           "a finite number, 0 for none");
  s.scalar("lr_scale", op.lr_scale, std::isfinite(op.lr_scale) && op.lr_scale >= 0,
           "a finite number, at least 0");
  s.scalar("first_element", op.first_element, op.first_element >= 0 && op.first_element % 4 == 0,
           "a multiple of 4, at least 0");
}

void check(const Fill& op) {
  Signature s("fill");
  s.elementwise(written("out"), op.out, real);
}

void check(const Cast& op) {
  Signature s("cast");
  s.elementwise("x", op.x, real);
  s.elementwise(written("out"), op.out, real);
}

void check(const SumParts& op) {
  Signature s("sum_parts");
  s.strided("parts", op.parts, real, {"N", "n"});
  s.contiguous(written("out"), op.out, f32, {"n"});
  s.require(s["N"] >= 1 && s["N"] <= SumParts::most_parts, "1 <= N <= 1024", {"N"});
}

void check(const WeightsHash& op) {
  Signature s("weights_hash");
  s.given(written("hash"), op.hash);
  s.elementwise("x", op.x, real);
  s.scalar("first_element", op.first_element, op.first_element >= 0, "at least 0");
}

}  // namespace goat
