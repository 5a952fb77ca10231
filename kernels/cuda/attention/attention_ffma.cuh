// Attention without tensor cores: fp32 arithmetic throughout, any d_h <= 256 and any alignment. It checks the
// tensor-core kernels and runs the shapes that they do not support.
#pragma once

#include "kernels/cuda/attention/attention_heads.cuh"

namespace goat::GOAT_TARGET {

// T = float or bf16 (converted to fp32 on load, rounded once on store). `batch` is B.
template <class T>
void attention_forward_ffma(const ForwardArguments<T>& arguments, int batch, Stream stream);
template <class T>
void attention_backward_ffma(const BackwardArguments<T>& arguments, int batch, Stream stream);

// The decode form runs for at most decode_queries queries against at least decode_keys keys.
constexpr int decode_queries = 4, decode_keys = 256;

// The decode form: few queries, many keys. It splits the keys over blocks and merges the parts in a fixed
// order. `parts` is scratch memory of decode_scratch_bytes().
std::size_t decode_scratch_bytes(const AttentionForward& op);
template <class T>
void attention_decode(const ForwardArguments<T>& arguments, int batch, void* parts, Stream stream);

// delta_i = <dout_i, out_i>, f32 [B, H, T_q].
template <class T>
void attention_delta(const BackwardArguments<T>& arguments, int batch, Stream stream);

}  // namespace goat::GOAT_TARGET
