// The operations of a Device. Each operation is a struct whose fields are its operands. Device::run(Op)
// checks the operands (operations.cpp) and enqueues the work.
//
// Conventions
// * Outputs come first, then inputs. "+=" marks an output to which the operation adds. "optional" marks a
//   tensor that may be absent.
// * N = B*T is the number of tokens in a micro-batch. Other symbols as in README ("Symbols"): C width, H
//   heads, d_h head dimension, d_c content dimension, R relative modes, M absolute modes, F = 2M+2 sink
//   features, n sink hidden units, V vocabulary, V_p padded vocabulary.
// * The dtype of a tensor follows from its role. An activation, the gradient of an activation, and a weight
//   (a matrix or a bias that a matrix product or the embedding lookup reads, marked "weight") have the
//   model's dtype: f32, or bf16 with fp32 accumulation. It is the same for all such operands of an operation.
//   All other parameters, the gradients of all parameters and the state of the optimizer are marked f32:
//   they are f32 in every model. So the gradients of micro-batches are added without rounding to bf16.
// * Tensors are contiguous unless a field says "strided". In a strided tensor only the last dimension
//   must be contiguous.
// * N, B, T and T_q may be 0. A sum of no terms is 0, and an output marked "+=" is then left unchanged.
// * Indices (tokens, targets) must lie within their range. The data readers check this when they load them.
//   The cpu device throws std::out_of_range for an index outside its range. A GPU cannot check: it would read
//   or write other memory.
// * No operation returns a value to the host: results stay in device memory. Every operation is deterministic
//   unless its `deterministic` field is false.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/operation_list.h"
#include "kernels/tensor.h"

namespace goat {

// ------------------------------------------------------------------------------------------------ embedding
// out[n, :] = table[tokens[n], :]. Saves nothing for backward.
struct EmbeddingForward {
  Tensor out;     // [N, C]
  Tensor tokens;  // i32 [N], each in [0, V_p)
  Tensor table;   // [V_p, C], weight
};

// dtable[v, :] += sum over n with tokens[n] == v of dout[n, :], added in the order of n.
struct EmbeddingBackward {
  Tensor dtable;  // f32 [V_p, C] +=
  Tensor dout;    // [N, C]
  Tensor tokens;  // i32 [N]
};

// ------------------------------------------------------------------------------------------------ positions
// stream[b, t, :] += table[first_position + t, :], rounded once. Saves nothing for backward.
struct AddPositions {
  Tensor stream;                    // [B, T, C] +=
  Tensor table;                     // f32 [P, C]
  std::int64_t first_position = 0;  // at most P - T
};

// dtable[t, :] += sum over b of dstream[b, t, :], added in the order of b.
struct AddPositionsBackward {
  Tensor dtable;   // f32 [P, C] +=, its first T rows
  Tensor dstream;  // [B, T, C], T <= P
};

// ------------------------------------------------------------------------------------------------ layernorm
// sum = x + residual (sum = x if residual is absent),
// out = (sum - mean) * rstd * weight + bias, mean and variance over the last dimension.
// Saves sum, mean and rstd.
struct LayerNormForward {
  Tensor out;       // [N, C]
  Tensor mean;      // f32 [N]
  Tensor rstd;      // f32 [N], rstd = 1 / sqrt(variance + eps), biased variance
  Tensor sum;       // [N, C], written when residual is present, else absent; may alias x or residual
  Tensor x;         // [N, C]
  Tensor residual;  // [N, C] optional
  Tensor weight;    // f32 [C]
  Tensor bias;      // f32 [C]
  float eps = 1e-5f;
};

// dsum += gradient of sum. It is also the gradient of x and of residual, because sum = x + residual.
struct LayerNormBackward {
  Tensor dsum;     // [N, C] +=
  Tensor dweight;  // f32 [C] +=
  Tensor dbias;    // f32 [C] +=
  Tensor dout;     // [N, C]
  Tensor sum;      // [N, C], as saved by the forward operation, like mean and rstd
  Tensor mean;     // f32 [N]
  Tensor rstd;     // f32 [N]
  Tensor weight;   // f32 [C]
};

// -------------------------------------------------------------------------------------------------- rmsnorm
// sum = x + residual (sum = x if residual is absent),
// out = sum * rstd * weight,  rstd = 1 / sqrt(mean of sum^2 + eps)  (Zhang & Sennrich 2019).
// Saves sum and rstd.
struct RmsNormForward {
  Tensor out;       // [N, C]
  Tensor rstd;      // f32 [N]
  Tensor sum;       // [N, C], written when residual is present, else absent; may alias x or residual
  Tensor x;         // [N, C]
  Tensor residual;  // [N, C] optional
  Tensor weight;    // f32 [C]
  float eps = 1e-5f;
};

// dsum += gradient of sum, which is also the gradient of x and of residual.
struct RmsNormBackward {
  Tensor dsum;     // [N, C] +=
  Tensor dweight;  // f32 [C] +=
  Tensor dout;     // [N, C]
  Tensor sum;      // [N, C], as saved by the forward operation, like rstd
  Tensor rstd;     // f32 [N]
  Tensor weight;   // f32 [C]
};

// --------------------------------------------------------------------------------------------------- linear
// What the f32 factors of a matrix product are rounded to. Sums stay in fp32. Factors that are bf16 already
// are taken as they are.
enum class Factors : std::uint8_t {
  as_stored,
  tf32,  // to TF32 (10 bits of mantissa), where a device has that and it is faster
  bf16   // to bf16 (7 bits of mantissa), to nearest
};

// out = x weight^T + bias
struct LinearForward {
  Tensor out;     // [N, O]
  Tensor x;       // [N, I]
  Tensor weight;  // [O, I], weight
  Tensor bias;    // [O], weight; optional
  Factors factors = Factors::as_stored;
};

// dx = dout weight
struct LinearBackwardInput {
  Tensor dx;      // [N, I]
  Tensor dout;    // [N, O]
  Tensor weight;  // [O, I], weight
  Factors factors = Factors::as_stored;
};

// dweight += dout^T x,  dbias += column sums of dout
struct LinearBackwardWeight {
  Tensor dweight;  // f32 [O, I] +=
  Tensor dbias;    // f32 [O] += optional
  Tensor dout;     // [N, O]
  Tensor x;        // [N, I]
  Factors factors = Factors::as_stored;
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

// ---------------------------------------------------------------------------------------- linear with gelu
// Where the GELU beside a matrix product is computed.
enum class Epilogue : std::uint8_t {
  own,      // after the product: it reads what the product has stored, rounded to the model's dtype
  library,  // by the matrix library, from the product's fp32 sums, before they are stored
};

// s = x weight^T + bias in fp32,  projected = s rounded to the model's dtype. Saves projected.
//   own:      out = gelu(projected), bitwise what LinearForward and GeluForward compute
//   library:  out = gelu(s), which GeluForward of projected does not give again
// Where the matrix library has no such product (for these shapes, dtypes and addresses), library means own.
// The cpu device has none.
struct LinearGeluForward {
  Tensor out;        // [N, O]
  Tensor projected;  // [N, O]
  Tensor x;          // [N, I]
  Tensor weight;     // [O, I], weight
  Tensor bias;       // [O], weight; optional
  Factors factors = Factors::as_stored;
  Epilogue epilogue = Epilogue::own;
};

// dprojected = (dout weight) * gelu'(projected): the gradient through a linear layer whose input is
// gelu(projected).
//   own:      dout weight is rounded first, bitwise what LinearBackwardInput and GeluBackward compute
//   library:  the fp32 sums are multiplied and rounded once
// The rest as in LinearGeluForward.
struct LinearGeluBackwardInput {
  Tensor dprojected;  // [N, I]
  Tensor dout;        // [N, O]
  Tensor weight;      // [O, I], weight
  Tensor projected;   // [N, I], as saved by the forward operation
  Factors factors = Factors::as_stored;
  Epilogue epilogue = Epilogue::own;
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
// Rotates q and k in place (Su et al. 2021, rotate-half form). Row t of each head is at position p =
// first_position + t. With (cos, sin) = fourier[p, r] and r < d_h/2, the pair (x_r, x_{r + d_h/2}) becomes
//   (x_r cos - x_{r + d_h/2} sin, x_{r + d_h/2} cos + x_r sin).
// backward = true applies the inverse rotation. It turns the gradients of the rotated vectors into the
// gradients of the vectors before the rotation.
struct Rope {
  Tensor q;        // strided [B, T, H, d_h], d_h even; optional
  Tensor k;        // strided [B, T, H_k, d_h]; optional
  Tensor fourier;  // f32 [T_max, d_h/2, 2], from FourierTable
  std::int64_t first_position = 0;
  bool backward = false;
};

// ---------------------------------------------------------------------------------------------------- prior
// Positions are i32 [T, A]. A = 1 for sequences. A = 2 (y, x) for image grids, where the first R - floor(R/2)
// frequencies act on y and the others on x. The features of a negative position (a class token) are zero. The
// angles frequency * position are computed in double before cos and sin.

// table[t, r] = (cos(w_r position), sin(w_r position)) = c_t of goat's factorisation.
struct FourierTable {
  Tensor table;      // f32 [T, R, 2]
  Tensor frequency;  // [R], f64 (fixed) or f32 (a learned parameter)
  Tensor positions;  // i32 [T, A]
};

// features[j] = phi(j) = ( cos(w_m j) for all m, sin(w_m j) for all m, j / train_length,
//                          log(1+j) / log(1+train_length) )
// In the last two features j is the row index, not the position.
struct SinkFeatures {
  Tensor features;   // f32 [T, 2M+2]
  Tensor frequency;  // f64 [M]
  Tensor positions;  // i32 [T, A]
  std::int64_t train_length = 0;
};

// key_bias[h, j] = u~(j) = w2[h] . silu(w1 phi(j) + b1) + bump[h] * (j == 0). Saves hidden = w1 phi(j) + b1.
struct SinkForward {
  Tensor key_bias;  // f32 [H, T]
  Tensor hidden;    // f32 [T, n]
  Tensor features;  // f32 [T, F]
  Tensor w1;        // f32 [n, F]
  Tensor b1;        // f32 [n]
  Tensor w2;        // f32 [H, n]
  Tensor bump;      // f32 [H]
};

// Sums over the batch and over j are computed in double, because large terms cancel: sum_j dkey_bias is 0
// except for rounding.
struct SinkBackward {
  Tensor dw1;            // f32 [n, F] +=
  Tensor db1;            // f32 [n] +=
  Tensor dw2;            // f32 [H, n] +=
  Tensor dbump;          // f32 [H] +=
  Tensor dkey_bias_sum;  // f32 [H, T], workspace: dkey_bias summed over the batch and the group
  Tensor dkey_bias;      // f32 [B, H_q, T], from AttentionBackward; H_q is a multiple of H, and the group of
                         // head h are the H_q / H heads from h H_q / H on
  Tensor hidden;         // f32 [T, n]
  Tensor features;       // f32 [T, F]
  Tensor w2;             // f32 [H, n]
};

// Writes the positional lanes of q and k in place: the coordinates after the d_c content coordinates. Row t
// is at position first_position + t of the tables. With P = key_bias_unit:
//   q[d_c ..] = ( a_t^(1)/sigma .. a_t^(R)/sigma, P, P, 0.. ),
//   k[d_c ..] = ( c_t^(1) .. c_t^(R), hi, lo, 0.. ),
//   a = ( alpha cos + beta sin, alpha sin - beta cos ),  hi + lo = key_bias / (sigma P).
// hi and lo are rounded to the dtype of k.
struct PriorLanesForward {
  static constexpr float key_bias_unit = 8.0f;
  Tensor q;                      // strided [B, T, H, d_h], coordinates d_c.. written; optional
  Tensor k;                      // strided [B, T, H_k, d_h], coordinates d_c.. written; optional
  Tensor alpha;                  // f32 [H, R]
  Tensor beta;                   // f32 [H, R]
  Tensor key_bias;               // f32 [H_k, T_max]
  Tensor fourier;                // f32 [T_max, R, 2]
  std::int64_t content_dim = 0;  // d_c; d_h - d_c >= 2R + 2
  std::int64_t first_position = 0;
  float scale = 0;  // sigma = 1/sqrt(d_c)
};

// Gradients of the prior's parameters, summed over the batch, from dA, dC and dslope of AttentionBackward:
//   dalpha_r += sum dA . (cos, sin),  dbeta_r += sum dA . (sin, -cos),  dlambda += sum_j dslope_j,
//   dfrequency_r += sum_h [ sum_i i (-alpha sin + beta cos, alpha cos + beta sin) . dA_i
//                           + sum_j j (-sin, cos) . dC_j ]
// The positions i and j are counted from their common mean. For exact dA and dC this changes nothing, but it
// keeps the position from multiplying their rounding errors. Sums are computed in double.
struct PriorLanesBackward {
  Tensor dalpha;      // f32 [H, R] +=
  Tensor dbeta;       // f32 [H, R] +=
  Tensor dlambda;     // f32 [H] += optional (with dslope)
  Tensor dfrequency;  // f32 [R] += optional (with dk_lanes)
  Tensor dq_lanes;    // f32 [B, H, T, 2R], dA
  Tensor dk_lanes;    // f32 [B, H_k, T, 2R], dC; optional
  Tensor dslope;      // f32 [B, H, T] optional
  Tensor alpha;       // f32 [H, R]
  Tensor beta;        // f32 [H, R]
  Tensor fourier;     // f32 [T, R, 2]
  Tensor positions;   // i32 [T, A]
};

// out = log(1 + e^x), f32, any shape. The slope is lambda = softplus(rho).
struct SoftplusForward {
  Tensor out;
  Tensor x;
};
struct SoftplusBackward {
  Tensor dx;  // +=
  Tensor dout;
  Tensor x;
};

// ------------------------------------------------------------------------------------------------ forgetting
// The gates of forgetting attention (Lin et al. 2025), f = sigmoid(gate), one for each token and head:
//   gate[n, h] = <x_n, weight_h> + bias[h], summed in fp32 for every dtype of x.
struct ForgetGatesForward {
  Tensor gate;    // f32 [N, H]
  Tensor x;       // [N, C]
  Tensor weight;  // f32 [H, C]
  Tensor bias;    // f32 [H]
};

// dx += dgate weight (rounded once),  dweight += dgate^T x,  dbias += column sums of dgate.
struct ForgetGatesBackward {
  Tensor dx;       // [N, C] +=
  Tensor dweight;  // f32 [H, C] +=
  Tensor dbias;    // f32 [H] +=
  Tensor dgate;    // f32 [N, H]
  Tensor x;        // [N, C]
  Tensor weight;   // f32 [H, C]
};

// key_bias[b, h, t] = -sum_{l <= t} log sigmoid(gate[b, l, h]), in double; it grows with t. With this key
// bias AttentionForward adds sum_{l = j+1 .. i} log sigmoid(gate_l) to logit (i, j). Token t of gate is at
// position first_position + t. The sum goes on from key_bias at first_position - 1, which is only read.
struct ForgetBiasForward {
  Tensor key_bias;                  // f64 strided [B, H, P], written from first_position on, for T positions
  Tensor gate;                      // f32 [B, T, H]
  std::int64_t first_position = 0;  // at most P - T
};

// dgate[b, l, h] = -(1 - sigmoid(gate[b, l, h])) sum_{j >= l} dkey_bias[b, h, j], summed in double.
struct ForgetBiasBackward {
  Tensor dgate;      // f32 [B, T, H]
  Tensor dkey_bias;  // f32 [B, H, T], from AttentionBackward
  Tensor gate;       // f32 [B, T, H]
};

// ------------------------------------------------------------------------------------------------ attention
// z_ij = scale <q_i, k_j> + slope (j - i') + key_bias_j - key_bias_i'
//   (the logits, in fp32 for every dtype of q and k),
// out_i = sum_j softmax(z_i.)_j v_j,  lse_i = log sum_j e^{z_ij}.
// Query row i is at position i' = i + T_k - T_q. causal: only keys j <= i' take part, and T_q <= T_k is
// required. Decoding uses T_q = 1. Memory is linear in T. Saves out and lse.
// Grouped queries (Ainslie et al. 2023): H is a multiple of H_k, and head h attends to the keys and values of
// head h / (H / H_k).
// key_bias may be as large as its sum over all positions. Only differences to the key at the row's own
// position i' enter, so that rounding to fp32 costs nothing where a weight is not negligible. Therefore
// key_bias is f64, and causal is required with it.
struct AttentionForward {
  Tensor out;       // [B, T_q, H, d_h]
  Tensor lse;       // f32 [B, H, T_q]
  Tensor q;         // strided [B, T_q, H, d_h]
  Tensor k;         // strided [B, T_k, H_k, d_h]
  Tensor v;         // strided [B, T_k, H_k, d_h]
  Tensor slope;     // f32 [H] optional
  Tensor key_bias;  // f64 strided [B, H, T_k] optional
  float scale = 0;
  bool causal = true;
};

// dS_ij = p_ij (<dout_i, v_j> - <dout_i, out_i>) = dL/dz_ij, computed in fp32.
// dq = scale dS k,  dk = scale dS^T q,  dv = p^T dout.
// Each row of dS adds up to 0. Therefore a device may compute dslope with (j - r_i) instead of (j - i'), for
// any position r_i near i'. This changes the terms of single keys, but not their sum.
// The lanes (coordinates content_dim .. d_h) of dq and dk are written as zeros, so that the gradient of the
// padded projection rows is exactly zero. The gradients of the lanes are written in fp32 to dq_lanes,
// dk_lanes and dkey_bias.
struct AttentionBackward {
  Tensor dq;        // strided [B, T_q, H, d_h]
  Tensor dk;        // strided [B, T_k, H_k, d_h], summed over the heads of a group, like dv and dk_lanes
  Tensor dv;        // strided [B, T_k, H_k, d_h]
  Tensor dq_lanes;  // f32 [B, H, T_q, 2R], dA_i = sum_j dS_ij c_j, first 2R lanes of dS k; optional
  Tensor dk_lanes;  // f32 [B, H_k, T_k, 2R], dC_j = sum_i dS_ij a_i, first 2R lanes of scale dS^T q; optional
  Tensor dkey_bias;  // f32 [B, H, T_k], dU_j = sum_i dS_ij; optional
  Tensor dslope;     // f32 [B, H, T_k], the terms of key j in sum_ij dS_ij (j - i'); optional
  Tensor delta;      // f32 [B, H, T_q], workspace for <dout_i, out_i>
  Tensor dout;       // [B, T_q, H, d_h]
  Tensor out;        // [B, T_q, H, d_h]
  Tensor lse;        // f32 [B, H, T_q]
  Tensor q;          // strided; q, k, v, slope, key_bias, scale and causal as in AttentionForward
  Tensor k;
  Tensor v;
  Tensor slope;
  Tensor key_bias;
  float scale = 0;
  bool causal = true;
  std::int64_t content_dim = 0;  // d_c; d_h if there are no lanes
  bool deterministic = true;     // false: a device may add up dq in any order if that is faster
};

// ----------------------------------------------------------------------------------------------- classifier
// losses[n] = -log softmax(logits[n, :vocab])[targets[n]]. If backward, logits are overwritten with their
// gradient: logits <- weight_n (softmax - onehot), padded columns <- 0. A target of -1 is masked: its loss
// and its gradient are 0.
struct CrossEntropy {
  Tensor logits;   // [N, V_p], overwritten with its gradient if backward, else unchanged
  Tensor losses;   // f32 [N]
  Tensor targets;  // i32 [N], each in [-1, vocab)
  Tensor weights;  // f32 [N] optional; weight_n = weight * weights[n]
  float weight = 1;
  std::int64_t vocab = 0;  // V <= V_p
  bool backward = true;
};

// ------------------------------------------------------------------------------------------------ optimizer
// Scalars of a training step. They live in device memory, so that a step does not wait for the host.
struct StepState {
  float learning_rate;             // set by the host before the step, like the two limits
  float loss_limit;                // a larger loss is a spike: the update is skipped; 0: no limit
  float grad_norm_limit;           // the same for the gradient norm
  float loss;                      // of the step; set by StepVerdict, like all that follows
  float grad_norm;                 // global 2-norm before clipping
  float clip_scale;                // min(1, clip / grad_norm)
  std::int32_t skip_update;        // 0: the update is applied; else one of the reasons below
  std::int32_t consecutive_skips;  // skipped updates since the last applied one
  std::int64_t updates;            // updates applied so far (Adam's t)
  static constexpr std::int32_t not_finite = 1, spike = 2;  // values of skip_update
  static constexpr int most_flags = 2;
  std::int32_t flags[most_flags]{};  // what any rank wanted the others to know in the step
};

// AddLoss, SquaredSums and StepVerdict add in double, in one order on every device, so that ranks which share
// the work decide alike, however many they are: lane l adds terms l, l + sum_lanes, l + 2 sum_lanes, ... one
// after the other. Then neighbours are added, lanes 0 + 1, 2 + 3, ..., then the neighbours among these sums,
// until one sum is left.
inline constexpr std::int64_t sum_lanes = 1024;

// *sum += weight * sum_n weights[n] losses[n]. Absent weights count as 1.
struct AddLoss {
  double* sum = nullptr;  // in device memory, 8-byte aligned, +=
  Tensor losses;          // f32 [N]
  Tensor weights;         // f32 [N] optional
  float weight = 1;
};

// sums[i] = sum of x[e]^2 over the elements i chunk <= e < (i+1) chunk, numbered from 0 in each chunk. So a
// chunk's sum depends neither on its place nor on zeros behind its last element.
struct SquaredSums {
  static constexpr std::int64_t chunk = 32768;
  Tensor sums;  // f64 [ceil(n / chunk)]
  Tensor x;     // f32, n elements, any shape
};

// The squared sums of consecutive chunks of a model's gradients, cut into N pieces, one on each rank: sums,
// piece by piece, are those of the chunks first, first + 1, ...
struct ChunkSums {
  Tensor sums;             // strided f64 [N, c], row r: of rank r's piece
  std::int64_t first = 0;  // at least 0
};

// Sets *state from the step's losses and the squared sums of its gradients:
//   loss = sum of losses, row by row, one after the other;  grad_norm = sqrt(sum of all squares);
//   clip_scale, skip_update, consecutive_skips, updates;  flags: the largest of each column, cut to an
//   integer.
// A chunk's number is that of its term in the sum of squares. Zeros that fill up the last pieces may have the
// numbers of the chunks that follow in the next tensor, so the bits of grad_norm depend neither on N nor on
// how the chunks are cut into tensors.
// Ranks are counted node by node, N / nodes on each. Rank r = node N / nodes + local has piece number
// local nodes + node of each tensor of squares; with one node, piece r. Squares are added in the order of the
// pieces, losses in the order of the ranks.
struct StepVerdict {
  StepState* state = nullptr;
  Tensor losses;                       // strided f64 [N, k], k sums of AddLoss of each rank
  std::span<const ChunkSums> squares;  // each `first` is at least the one before
  float clip = 0;                      // 0: no clipping
  Tensor flags{};                      // strided f64 [N, most_flags], optional: then all flags are 0
  int nodes = 1;                       // a divisor of N, and of the rows of each tensor of squares
};

// How an fp32 master weight is rounded to a bf16 parameter. stochastic: rounds up with probability
// (distance to the lower neighbour) / (distance between the neighbours), so that the expected value is
// the master weight.
enum class Rounding : std::uint8_t { nearest, stochastic };

// AdamW with decoupled weight decay (Loshchilov & Hutter 2019), t = state->updates, g = clip_scale * grad,
// lr = state->learning_rate * lr_scale:
//   m <- beta1 m + (1-beta1) g,  v <- beta2 v + (1-beta2) g^2,
//   param <- param - lr ( (m/(1-beta1^t)) / (sqrt(v/(1-beta2^t)) + eps) + weight_decay param )
struct AdamW {
  StepState* state = nullptr;
  Tensor param;   // [n], f32 or bf16, read by the forward pass
  Tensor master;  // f32 [n], master weights; absent if param is f32 and its own master
  Tensor m;       // f32 [n]
  Tensor v;       // f32 [n]
  Tensor grad;    // f32 [n]
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float eps = 1e-8f;
  float weight_decay = 0;
  float lr_scale = 1;
  Rounding rounding = Rounding::nearest;
  // stochastic rounding: the random number of element i at update t depends only on (seed, t,
  // first_element + i), so that parts of an array are rounded as the whole is
  std::uint64_t seed = 0;
  std::int64_t first_element = 0;  // a multiple of 4
};

// --------------------------------------------------------------------------------------------------- copies
// out[i] = value, rounded to nearest. Any shape.
struct Fill {
  Tensor out;  // f32 or bf16
  float value = 0;
};

// out[i] = x[i], rounded to nearest if out is bf16 and x is f32. Any shape.
struct Cast {
  Tensor out;  // f32 or bf16
  Tensor x;    // f32 or bf16
};

// ------------------------------------------------------------------------------------------------- replicas
// out[i] = sum over p of parts[p, i] in fp32, in the binary-counter tree over p: the sum of N parts is the
// sum of the first P plus the sum of the others, P the largest power of two below N, and the sum of one part
// is that part. N = 7: ((0+1) + (2+3)) + ((4+5) + 6). So every 2^k parts that begin at a multiple of 2^k may
// be added elsewhere first, and every device gives the same bits (a NaN's payload apart). Parts in bf16 are
// widened to f32 before they are added.
struct SumParts {
  static constexpr std::int64_t most_parts = 1024;
  Tensor out;    // f32 [n]; one of the parts if they are f32, or memory that no part overlaps
  Tensor parts;  // strided f32 or bf16 [N, n], 1 <= N <= most_parts
};

// *hash += sum over i of mix(bits of x[i] + (first_element + i) 0x9E3779B97F4A7C15), all modulo 2^64, where
// mix is the bijection of SplitMix64 (Steele et al. 2014):
//   z <- (z ^ z >> 30) 0xBF58476D1CE4E5B9,  z <- (z ^ z >> 27) 0x94D049BB133111EB,  z ^ z >> 31.
// The sum depends on no order, and the hashes of a tensor's pieces add up to that of the whole. If one
// element differs in any bit, the hash always differs; other differences, elements in another order among
// them, go unnoticed with probability 2^-64.
struct WeightsHash {
  std::uint64_t* hash = nullptr;  // in device memory, 8-byte aligned, +=
  Tensor x;                       // f32 or bf16, any shape
  std::int64_t first_element = 0;
};

// The operation's name in messages: "embedding_forward".
#define GOAT_NAME_OPERATION(Operation, name) \
  constexpr const char* name_of(const Operation&) { return #name; }
GOAT_FOR_EACH_OPERATION(GOAT_NAME_OPERATION)
#undef GOAT_NAME_OPERATION

// Throws std::invalid_argument if the operands do not fit together, for example "layernorm_forward: weight
// 'name' [3] f32: expected shape [C] = [4] (C = 4 in x)".
#define GOAT_DECLARE_CHECK(Operation, name) void check(const Operation& op);
GOAT_FOR_EACH_OPERATION(GOAT_DECLARE_CHECK)
#undef GOAT_DECLARE_CHECK

}  // namespace goat
