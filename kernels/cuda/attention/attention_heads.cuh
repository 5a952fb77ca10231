// Views of one head's rows, and the arguments of the forward and backward attention kernels.
#pragma once

#include "kernels/cuda/target.cuh"
#include "kernels/operations.h"

namespace goat::GOAT_TARGET {

// The rows of one head of one sequence. The stride is in elements.
template <class T>
struct HeadRows {
  T* data;
  std::int64_t stride;

  __device__ __forceinline__ T* row(std::int64_t index) const { return data + index * stride; }
};

// The rows of a tensor [B, T, H, d_h] by sequence and head. Strides are in elements; the last
// dimension has stride 1.
template <class T>
struct Heads {
  T* data = nullptr;
  std::int64_t sequence_stride = 0, row_stride = 0, head_stride = 0;

  Heads() = default;
  explicit Heads(const Tensor& tensor)
      : data(static_cast<T*>(tensor.data)),
        sequence_stride(tensor.stride[0]),
        row_stride(tensor.stride[1]),
        head_stride(tensor.stride[2]) {}
  __device__ __forceinline__ T* rows(int sequence, int head) const {
    return data + sequence * sequence_stride + head * head_stride;
  }
  __device__ __forceinline__ HeadRows<T> head(int sequence, int index) const {
    return {rows(sequence, index), row_stride};
  }

  // The same tensor without its first `count` sequences.
  Heads after(int count) const {
    Heads rest = *this;
    if (rest.data) rest.data += count * sequence_stride;
    return rest;
  }

  // Whether every row begins at a multiple of 16 bytes, as copies in 16-byte chunks need.
  bool aligned() const {
    const auto whole = [](std::int64_t elements) {
      return elements * static_cast<std::int64_t>(sizeof(T)) % 16 == 0;
    };
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && whole(sequence_stride) && whole(row_stride) &&
           whole(head_stride);
  }
};

// The bias of every key, f64 [B, H, T_k], or nothing. Strides are in elements; the keys of a head are next to
// each other.
struct KeyBias {
  const double* data = nullptr;
  std::int64_t sequence_stride = 0, head_stride = 0;

  KeyBias() = default;
  explicit KeyBias(const Tensor& tensor)
      : data(static_cast<const double*>(tensor.data)),
        sequence_stride(tensor.stride[0]),
        head_stride(tensor.stride[1]) {}
  explicit operator bool() const { return data != nullptr; }
  __device__ __forceinline__ const double* keys(int sequence, int head) const {
    return data + sequence * sequence_stride + head * head_stride;
  }
  __device__ __forceinline__ double at(int sequence, int head, int key) const {
    return keys(sequence, head)[key];
  }

  // The same tensor without its first `count` sequences.
  KeyBias after(int count) const {
    KeyBias rest = *this;
    if (rest.data) rest.data += count * sequence_stride;
    return rest;
  }
};

// Which heads of q share a head of k and v: `size` neighbours each.
struct HeadGroups {
  int size = 1;                        // H / H_k; 0 if there are heads of k and v only
  std::uint32_t inverse = UINT32_MAX;  // floor((2^32 - 1) / size)

  HeadGroups() = default;
  HeadGroups(int heads, int key_heads)
      : size(key_heads > 0 ? heads / key_heads : 1),
        inverse(UINT32_MAX / static_cast<std::uint32_t>(size > 0 ? size : 1)) {}

  // The head of k and v for a head of q: head / size, without a division. Exact while (head + 1) size < 2^32.
  __device__ __forceinline__ int key_head(int head) const {
    return static_cast<int>(static_cast<std::uint64_t>(static_cast<std::uint32_t>(head) + 1) * inverse >> 32);
  }
};

constexpr float log2_e = 1.44269504088896340736f;
constexpr float ln_2 = 0.69314718055994530942f;

template <class T>
struct ForwardArguments {
  Heads<T> out;
  float* lse = nullptr;  // [B, H, T_q]
  Heads<const T> q, k, v;
  const float* slope = nullptr;  // [H] or nullptr
  float scale = 0;
  bool causal = true;
  int heads = 0, queries = 0, keys = 0, head_dim = 0;  // H, T_q, T_k, d_h
  KeyBias key_bias;
  int key_heads = 0;  // H_k
  HeadGroups groups;
  float inverse_scale = 0;  // 1 / scale

  explicit ForwardArguments(const AttentionForward& op)
      : out(op.out),
        lse(static_cast<float*>(op.lse.data)),
        q(op.q),
        k(op.k),
        v(op.v),
        slope(static_cast<const float*>(op.slope.data)),
        scale(op.scale),
        causal(op.causal),
        heads(static_cast<int>(op.q.shape[2])),
        queries(static_cast<int>(op.q.shape[1])),
        keys(static_cast<int>(op.k.shape[1])),
        head_dim(static_cast<int>(op.q.shape[3])),
        key_bias(op.key_bias),
        key_heads(static_cast<int>(op.k.shape[2])),
        groups(heads, key_heads),
        inverse_scale(1 / scale) {}
  __device__ __forceinline__ int key_head(int head) const { return groups.key_head(head); }

  // The arguments for the batch without its first `count` sequences.
  ForwardArguments after(int count) const {
    ForwardArguments rest = *this;
    for (Heads<const T>* operand : {&rest.q, &rest.k, &rest.v}) *operand = operand->after(count);
    rest.out = out.after(count);
    rest.key_bias = key_bias.after(count);
    rest.lse += static_cast<std::int64_t>(count) * heads * queries;
    return rest;
  }
  bool aligned() const {
    return head_dim % 8 == 0 && out.aligned() && q.aligned() && k.aligned() && v.aligned();
  }
};

template <class T>
struct BackwardArguments {
  Heads<T> dq, dk, dv;
  float *dq_lanes = nullptr, *dk_lanes = nullptr;  // [B, H, T_q, 2R] and [B, H_k, T_k, 2R], or nullptr
  float *dkey_bias = nullptr, *dslope = nullptr;   // [B, H, T_k] or nullptr
  float* delta = nullptr;                          // [B, H, T_q]
  Heads<const T> dout, out;
  const float* lse = nullptr;
  Heads<const T> q, k, v;
  const float* slope = nullptr;
  float scale = 0;
  bool causal = true;
  int heads = 0, queries = 0, keys = 0, head_dim = 0;
  int content_dim = 0, lanes = 0;  // d_c, 2R
  KeyBias key_bias;
  int key_heads = 0;  // H_k
  HeadGroups groups;
  float inverse_scale = 0;  // 1 / scale

  explicit BackwardArguments(const AttentionBackward& op)
      : dq(op.dq),
        dk(op.dk),
        dv(op.dv),
        dq_lanes(static_cast<float*>(op.dq_lanes.data)),
        dk_lanes(static_cast<float*>(op.dk_lanes.data)),
        dkey_bias(static_cast<float*>(op.dkey_bias.data)),
        dslope(static_cast<float*>(op.dslope.data)),
        delta(static_cast<float*>(op.delta.data)),
        dout(op.dout),
        out(op.out),
        lse(static_cast<const float*>(op.lse.data)),
        q(op.q),
        k(op.k),
        v(op.v),
        slope(static_cast<const float*>(op.slope.data)),
        scale(op.scale),
        causal(op.causal),
        heads(static_cast<int>(op.q.shape[2])),
        queries(static_cast<int>(op.q.shape[1])),
        keys(static_cast<int>(op.k.shape[1])),
        head_dim(static_cast<int>(op.q.shape[3])),
        content_dim(static_cast<int>(op.content_dim)),
        lanes(op.dq_lanes   ? static_cast<int>(op.dq_lanes.shape[3])
              : op.dk_lanes ? static_cast<int>(op.dk_lanes.shape[3])
                            : 0),
        key_bias(op.key_bias),
        key_heads(static_cast<int>(op.k.shape[2])),
        groups(heads, key_heads),
        inverse_scale(1 / scale) {}
  __device__ __forceinline__ int key_head(int head) const { return groups.key_head(head); }

  // The arguments for the batch without its first `count` sequences.
  BackwardArguments after(int count) const {
    BackwardArguments rest = *this;
    for (Heads<T>* gradient : {&rest.dq, &rest.dk, &rest.dv}) *gradient = gradient->after(count);
    for (Heads<const T>* operand : {&rest.dout, &rest.out, &rest.q, &rest.k, &rest.v})
      *operand = operand->after(count);
    rest.key_bias = key_bias.after(count);
    const std::int64_t query_rows = static_cast<std::int64_t>(count) * heads * queries,
                       key_rows = static_cast<std::int64_t>(count) * heads * keys;
    rest.delta += query_rows;
    rest.lse += query_rows;
    if (dq_lanes) rest.dq_lanes += query_rows * lanes;
    if (dk_lanes) rest.dk_lanes += static_cast<std::int64_t>(count) * key_heads * keys * lanes;
    if (dkey_bias) rest.dkey_bias += key_rows;
    if (dslope) rest.dslope += key_rows;
    return rest;
  }
  bool aligned() const {
    return head_dim % 8 == 0 && dq.aligned() && dk.aligned() && dv.aligned() && dout.aligned() &&
           out.aligned() && q.aligned() && k.aligned() && v.aligned();
  }
};

}  // namespace goat::GOAT_TARGET
