// The operations of a Device: one struct each, whose fields are its operands. Device::run(Op) checks them
// (operations.cpp) and enqueues the work.
//
// Conventions
// * Outputs come first, then inputs. "+=" marks an output that is accumulated into, "optional" a tensor that
// may be absent.
// * N = B*T is the number of tokens in a micro-batch; other symbols as in README ("Symbols"): C width, H
// heads, d_h head dimension, d_c content
//   dimension, R relative modes, M absolute modes, F = 2M+2 sink features, n sink hidden units, V vocabulary,
//   V_p padded vocabulary.
// * Activations, weights and their gradients have the model's dtype (f32, or bf16 with fp32 accumulation);
// everything marked f32 is always f32.
// * Tensors are contiguous unless a field says "strided": then only the last dimension must be.
// * N, B, T and T_q may be 0: sums of no terms are 0, and what is accumulated into stays as it is.
// * Indices (tokens, targets) lie within their range. The readers of data see to it when they load them: the
// cpu device throws std::out_of_range for others, a GPU, which cannot, reads or adds to other memory.
// * No operation returns a value to the host: results stay in device memory. Every operation is deterministic
// unless it is told that it need not be.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/operation_list.h"
#include "kernels/tensor.h"

namespace goat {

// ------------------------------------------------------------------------------------------------ embedding
// out[n, :] = table[tokens[n], :].   Saves nothing for backward.
struct EmbeddingForward {
  Tensor out;     // [N, C]
  Tensor tokens;  // i32 [N], each in [0, V_p)
  Tensor table;   // [V_p, C]
};

// dtable[v, :] += sum over n with tokens[n] == v of dout[n, :], in the order of n.
struct EmbeddingBackward {
  Tensor dtable;  // [V_p, C] +=
  Tensor dout;    // [N, C]
  Tensor tokens;  // i32 [N]
};

// ------------------------------------------------------------------------------------------------ layernorm
// sum = x + residual (sum = x if residual is absent);  out = (sum - mean) * rstd * weight + bias, over the
// last dimension. Saves sum, mean, rstd.
struct LayerNormForward {
  Tensor out;       // [N, C]
  Tensor mean;      // f32 [N]
  Tensor rstd;      // f32 [N], 1 / sqrt(variance + eps), variance biased
  Tensor sum;       // [N, C], written when residual is present, else absent; may alias x or residual
  Tensor x;         // [N, C]
  Tensor residual;  // [N, C] optional
  Tensor weight;    // [C]
  Tensor bias;      // [C]
  float eps = 1e-5f;
};

// dsum += gradient through the normalisation. (As sum = x + residual, dsum is the gradient of both.)
struct LayerNormBackward {
  Tensor dsum;     // [N, C] +=
  Tensor dweight;  // [C] +=
  Tensor dbias;    // [C] +=
  Tensor dout;     // [N, C]
  Tensor sum;      // [N, C], mean, rstd: as saved
  Tensor mean;     // f32 [N]
  Tensor rstd;     // f32 [N]
  Tensor weight;   // [C]
};

// -------------------------------------------------------------------------------------------------- rmsnorm
// sum = x + residual (sum = x if residual is absent);  out = sum * rstd * weight,  rstd = 1 / sqrt(mean of
// sum^2 + eps)  (Zhang & Sennrich 2019). Saves sum and rstd.
struct RmsNormForward {
  Tensor out;       // [N, C]
  Tensor rstd;      // f32 [N]
  Tensor sum;       // [N, C], written when residual is present, else absent; may alias x or residual
  Tensor x;         // [N, C]
  Tensor residual;  // [N, C] optional
  Tensor weight;    // [C]
  float eps = 1e-5f;
};

// dsum += gradient through the normalisation.
struct RmsNormBackward {
  Tensor dsum;     // [N, C] +=
  Tensor dweight;  // [C] +=
  Tensor dout;     // [N, C]
  Tensor sum;      // [N, C], rstd: as saved
  Tensor rstd;     // f32 [N]
  Tensor weight;   // [C]
};

// --------------------------------------------------------------------------------------------------- linear
// tf32: a device that is faster with it may round f32 operands of the matrix product to TF32, 10 bits of
// mantissa; sums stay in fp32.

// out = x weight^T + bias
struct LinearForward {
  Tensor out;     // [N, O]
  Tensor x;       // [N, I]
  Tensor weight;  // [O, I]
  Tensor bias;    // [O] optional
  bool tf32 = false;
};

// dx = dout weight
struct LinearBackwardInput {
  Tensor dx;      // [N, I]
  Tensor dout;    // [N, O]
  Tensor weight;  // [O, I]
  bool tf32 = false;
};

// dweight += dout^T x,  dbias += column sums of dout
struct LinearBackwardWeight {
  Tensor dweight;  // [O, I] +=
  Tensor dbias;    // [O] += optional
  Tensor dout;     // [N, O]
  Tensor x;        // [N, I]
  bool tf32 = false;
};

// ----------------------------------------------------------------------------------------------------- gelu
// GELU, tanh form: out = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Any shape. Saves x.
struct GeluForward {
  Tensor out;
  Tensor x;
};

struct GeluBackward {
  Tensor dx;  // may alias dout
  Tensor dout;
  Tensor x;
};

// --------------------------------------------------------------------------------------------------- swiglu
// out = silu(gate) * up,  silu(x) = x / (1 + e^-x)  (Shazeer 2020). gate and up may be the halves of one [N,
// 2F]. Saves gate and up.
struct SwigluForward {
  Tensor out;   // [N, F]
  Tensor gate;  // strided [N, F]
  Tensor up;    // strided [N, F]
};

struct SwigluBackward {
  Tensor dgate;  // strided [N, F], may alias gate
  Tensor dup;    // strided [N, F], may alias up
  Tensor dout;   // [N, F]
  Tensor gate;   // strided [N, F]
  Tensor up;     // strided [N, F]
};

// ----------------------------------------------------------------------------------------------------- rope
// Rotates q and k in place: row t of each head takes position p = first_position + t of the table, and the
// pair (x_r, x_{r + d_h/2}), r < d_h/2, becomes (x_r cos - x_{r+d_h/2} sin, x_{r+d_h/2} cos + x_r sin) with
// (cos, sin) = fourier[p, r]  (Su et al. 2021, rotate-half form). backward: the inverse rotation, which takes
// the gradients of the rotated vectors to those of the vectors.
struct Rope {
  Tensor q;        // strided [B, T, H, d_h], d_h even; optional
  Tensor k;        // strided [B, T, H, d_h]; optional
  Tensor fourier;  // f32 [T_max, d_h/2, 2], from FourierTable
  std::int64_t first_position = 0;
  bool backward = false;
};

// ---------------------------------------------------------------------------------------------------- prior
// Positions are i32 [T, A]: A = 1 for sequences, A = 2 (y, x) for image grids, where the first R - floor(R/2)
// frequencies act on y and the rest on x. A negative position (a class token) has zero features. Angles
// frequency * position are formed in double before cos and sin.

// table[t, r] = (cos(w_r position), sin(w_r position)) = c_t of goat's factorisation.
struct FourierTable {
  Tensor table;      // f32 [T, R, 2]
  Tensor frequency;  // [R], f64 (fixed) or f32 (a learned parameter)
  Tensor positions;  // i32 [T, A]
};

// features[j] = phi(j) = ( cos(w_m j) for all m, sin(w_m j) for all m, j / train_length, log(1+j) /
// log(1+train_length) ); the last two use the row j.
struct SinkFeatures {
  Tensor features;   // f32 [T, 2M+2]
  Tensor frequency;  // f64 [M]
  Tensor positions;  // i32 [T, A]
  std::int64_t train_length = 0;
};

// key_bias[h, j] = u~(j) = w2[h] . silu(w1 phi(j) + b1) + bump[h] * (j == 0).   Saves hidden (the
// pre-activation).
struct SinkForward {
  Tensor key_bias;  // f32 [H, T]
  Tensor hidden;    // f32 [T, n]
  Tensor features;  // f32 [T, F]
  Tensor w1;        // f32 [n, F]
  Tensor b1;        // f32 [n]
  Tensor w2;        // f32 [H, n]
  Tensor bump;      // f32 [H]
};

// Sums over the batch and over j are taken in double: sum_j dkey_bias is 0 but for rounding, so that large
// terms cancel.
struct SinkBackward {
  Tensor dw1;            // f32 [n, F] +=
  Tensor db1;            // f32 [n] +=
  Tensor dw2;            // f32 [H, n] +=
  Tensor dbump;          // f32 [H] +=
  Tensor dkey_bias_sum;  // f32 [H, T], workspace: dkey_bias summed over the batch
  Tensor dkey_bias;      // f32 [B, H, T], from AttentionBackward
  Tensor hidden;         // f32 [T, n]
  Tensor features;       // f32 [T, F]
  Tensor w2;             // f32 [H, n]
};

// Writes the positional lanes of q and k in place, after the d_c content coordinates; row t takes position
// first_position + t of the tables:
//   q[d_c ..] = ( a_t^(1)/sigma .. a_t^(R)/sigma, P, P, 0.. ),  a = ( alpha cos + beta sin, alpha sin - beta
//   cos ),  P = key_bias_unit k[d_c ..] = ( c_t^(1) .. c_t^(R), hi, lo, 0.. ),            hi + lo = key_bias
//   / (sigma P), hi and lo rounded to the dtype of k
struct PriorLanesForward {
  static constexpr float key_bias_unit = 8.0f;
  Tensor q;                      // strided [B, T, H, d_h], coordinates d_c.. written; optional
  Tensor k;                      // strided [B, T, H, d_h], coordinates d_c.. written; optional
  Tensor alpha;                  // f32 [H, R]
  Tensor beta;                   // f32 [H, R]
  Tensor key_bias;               // f32 [H, T_max]
  Tensor fourier;                // f32 [T_max, R, 2]
  std::int64_t content_dim = 0;  // d_c; d_h - d_c >= 2R + 2
  std::int64_t first_position = 0;
  float scale = 0;  // sigma = 1/sqrt(d_c)
};

// Gradients of the prior's parameters from what AttentionBackward leaves, summed over the batch:
//   dalpha_r += sum dA . (cos, sin),  dbeta_r += sum dA . (sin, -cos),  dlambda += sum_j dslope_j,
//   dfrequency_r += sum_h [ sum_i i (-alpha sin + beta cos, alpha cos + beta sin) . dA_i + sum_j j (-sin,
//   cos) . dC_j ]
// where i and j are positions counted from their common mean: the same for exact dA and dC, but their
// rounding is not multiplied by the position. Sums are taken in double.
struct PriorLanesBackward {
  Tensor dalpha;      // f32 [H, R] +=
  Tensor dbeta;       // f32 [H, R] +=
  Tensor dlambda;     // f32 [H] += optional (with dslope)
  Tensor dfrequency;  // f32 [R] += optional (with dk_lanes)
  Tensor dq_lanes;    // f32 [B, H, T, 2R]: dA
  Tensor dk_lanes;    // f32 [B, H, T, 2R]: dC, optional
  Tensor dslope;      // f32 [B, H, T] optional
  Tensor alpha;       // f32 [H, R]
  Tensor beta;        // f32 [H, R]
  Tensor fourier;     // f32 [T, R, 2]
  Tensor positions;   // i32 [T, A]
};

// out = log(1 + e^x), f32, any shape (the slope lambda = softplus(rho)).
struct SoftplusForward {
  Tensor out;
  Tensor x;
};
struct SoftplusBackward {
  Tensor dx;  // +=
  Tensor dout;
  Tensor x;
};

// ------------------------------------------------------------------------------------------------ attention
// logits z_ij = scale <q_i, k_j> + slope (j - i');  out_i = sum_j softmax(z_i.)_j v_j;  lse_i = log sum_j
// e^{z_ij}. Query row i stands at position i' = i + T_k - T_q. causal: only keys j <= i' take part (needs T_q
// <= T_k). T_q = 1 is the decode form. Memory is linear in T. A logit is scale*<q,k> + slope*(j-i') in fp32
// whatever the dtype of q and k. Saves out and lse.
struct AttentionForward {
  Tensor out;    // [B, T_q, H, d_h]
  Tensor lse;    // f32 [B, H, T_q]
  Tensor q;      // strided [B, T_q, H, d_h]
  Tensor k;      // strided [B, T_k, H, d_h]
  Tensor v;      // strided [B, T_k, H, d_h]
  Tensor slope;  // f32 [H] optional
  float scale = 0;
  bool causal = true;
};

// With S_ij = p_ij (<dout_i, v_j> - <dout_i, out_i>) = dL/dz_ij, taken in fp32:
// dq = scale S k, dk = scale S^T q, dv = p^T dout. As rows of S add up to 0, (j - i') may be (j - r_i) in
// dslope, r_i any position near i': one key's share is then another, their sum the same. The lanes
// (coordinates content_dim .. d_h) of dq and dk are written as zeros, so that the gradient of the padded
// projection rows is exactly zero; what would stand there leaves in fp32 instead:
struct AttentionBackward {
  Tensor dq;        // strided [B, T_q, H, d_h]
  Tensor dk;        // strided [B, T_k, H, d_h]
  Tensor dv;        // strided [B, T_k, H, d_h]
  Tensor dq_lanes;  // f32 [B, H, T_q, 2R]: dA_i = sum_j S_ij c_j, the first 2R lanes of S k; optional
  Tensor dk_lanes;  // f32 [B, H, T_k, 2R]: dC_j = sum_i S_ij a_i, the first 2R lanes of scale S^T q; optional
  Tensor dkey_bias;  // f32 [B, H, T_k]: dU_j = sum_i S_ij; optional
  Tensor dslope;     // f32 [B, H, T_k]: a key's share of sum_ij S_ij (j - i'); optional
  Tensor delta;      // f32 [B, H, T_q], workspace: <dout_i, out_i>
  Tensor dout;       // [B, T_q, H, d_h]
  Tensor out;        // [B, T_q, H, d_h]
  Tensor lse;        // f32 [B, H, T_q]
  Tensor q;          // strided, k, v, slope, scale, causal: as in the forward call
  Tensor k;
  Tensor v;
  Tensor slope;
  float scale = 0;
  bool causal = true;
  std::int64_t content_dim = 0;  // d_c; d_h where there are no lanes
  bool deterministic = true;     // false: a device may add up dq in any order, if that is faster
};

// ----------------------------------------------------------------------------------------------- classifier
// losses[n] = -log softmax(logits[n, :vocab])[targets[n]], and in place logits <- weight_n (softmax -
// onehot), padded columns <- 0. A target of -1 is masked: loss 0, gradient 0.
struct CrossEntropy {
  Tensor logits;   // [N, V_p], overwritten with its gradient if backward, else left as it is
  Tensor losses;   // f32 [N]
  Tensor targets;  // i32 [N], each in [-1, vocab)
  Tensor weights;  // f32 [N] optional; weight_n = weight * weights[n]
  float weight = 1;
  std::int64_t vocab = 0;  // V <= V_p
  bool backward = true;
};

// ------------------------------------------------------------------------------------------------ optimizer
// Scalars of a training step; lives in device memory so that a step needs no answer from the host.
struct StepState {
  float learning_rate;    // set by the host before the step, like the two limits
  float loss_limit;       // a larger loss or gradient norm is a spike, whose update is skipped; 0: no limit
  float grad_norm_limit;  //
  float loss;             // sum of weight_n losses[n] over the step's micro-batches
  float grad_norm;        // global 2-norm before clipping
  float clip_scale;       // min(1, clip / grad_norm)
  std::int32_t skip_update;        // not 0: AdamW leaves everything as it was; see below
  std::int32_t consecutive_skips;  // skipped updates since the last applied one
  std::int64_t updates;            // updates applied so far (Adam's t)
  static constexpr std::int32_t not_finite = 1, spike = 2;  // reasons to skip
};

// state->loss += sum_n weight weights[n] losses[n], in a fixed order (weights absent: 1).
struct AddLoss {
  StepState* state = nullptr;
  Tensor losses;   // f32 [N]
  Tensor weights;  // f32 [N] optional
  float weight = 1;
};

// grad_norm, clip_scale, skip_update, consecutive_skips and updates of *state, from state->loss and the
// gradients.
struct GradientNorm {
  StepState* state = nullptr;
  std::span<const Tensor> grads;  // each contiguous, any shape, f32 or bf16
  float clip = 0;                 // 0: no clipping
};

// How an fp32 master weight becomes a bf16 parameter. stochastic: up with probability (distance from below) /
// (distance of the two neighbours), so that the expected parameter is the master weight.
enum class Rounding : std::uint8_t { nearest, stochastic };

// Decoupled weight decay (Loshchilov & Hutter 2019), t = state->updates, g = clip_scale * grad:
//   m <- beta1 m + (1-beta1) g,  v <- beta2 v + (1-beta2) g^2,
//   param <- param - lr ( (m/(1-beta1^t)) / (sqrt(v/(1-beta2^t)) + eps) + weight_decay param )
struct AdamW {
  StepState* state = nullptr;
  Tensor param;   // [n] the copy that forward reads, any dtype
  Tensor master;  // f32 [n] master weights; absent if param is f32 and is its own master
  Tensor m;       // f32 [n]
  Tensor v;       // f32 [n]
  Tensor grad;    // [n]
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float eps = 1e-8f;
  float weight_decay = 0;
  Rounding rounding = Rounding::nearest;
  std::uint64_t seed =
      0;  // stochastic: element i at update t takes a random number that is a function of (seed, t, i) alone
};

// --------------------------------------------------------------------------------------------------- copies
// out[i] = value, rounded to nearest. Any shape.
struct Fill {
  Tensor out;  // f32 or bf16
  float value = 0;
};

// out[i] = x[i], rounded to nearest where out is bf16 and x is f32. Any shape.
struct Cast {
  Tensor out;  // f32 or bf16
  Tensor x;    // f32 or bf16
};

// Throws std::invalid_argument where operands do not fit together: "layernorm_forward: weight 'name' [3] f32:
// expected shape [C] = [4] (C = 4 in x)".
#define GOAT_DECLARE_CHECK(Operation, name) void check(const Operation& op);
GOAT_FOR_EACH_OPERATION(GOAT_DECLARE_CHECK)
#undef GOAT_DECLARE_CHECK

}  // namespace goat
