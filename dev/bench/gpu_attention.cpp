// Attention at the shapes of FlashAttention's benchmark: B T = 16,384 tokens, H d_h = 2048, causal, bf16.
// FLOPs are counted as there: 4 B T^2 H d_h, half of it if causal; the backward pass 2.5 times that.
#include <cmath>

#include "dev/bench/gpu_bench.h"

namespace goat::bench {

namespace {
struct Shape {
  std::int64_t batch, length, heads, head_dim, modes;
  bool causal;
  std::int64_t content_dim() const { return head_dim - 2 * modes - 2; }
  double forward_flops() const {
    return 4.0 * static_cast<double>(batch * length * heads * head_dim) * static_cast<double>(length) *
           (causal ? 0.5 : 1.0);
  }
};

// Operands of both passes, packed as the trainer has them.
struct Attention {
  Arena arena;
  Tensor qkv, dqkv, out, lse, dout, delta, slope, dq_lanes, dk_lanes, dkey_bias, dslope;
  Shape shape;

  Attention(Device& device, const Shape& s) : arena(device), shape(s) {
    qkv = arena.tensor(DType::bf16, {s.batch, s.length, 3, s.heads, s.head_dim}, "qkv");
    dqkv = arena.tensor(DType::bf16, {s.batch, s.length, 3, s.heads, s.head_dim}, "dqkv");
    out = arena.tensor(DType::bf16, {s.batch, s.length, s.heads, s.head_dim}, "out");
    dout = arena.tensor(DType::bf16, {s.batch, s.length, s.heads, s.head_dim}, "dout");
    lse = arena.tensor(DType::f32, {s.batch, s.heads, s.length}, "lse");
    delta = arena.tensor(DType::f32, {s.batch, s.heads, s.length}, "delta");
    slope = arena.tensor(DType::f32, {s.heads}, "slope");
    dq_lanes = arena.tensor(DType::f32, {s.batch, s.heads, s.length, 2 * s.modes}, "dq_lanes");
    dk_lanes = arena.tensor(DType::f32, {s.batch, s.heads, s.length, 2 * s.modes}, "dk_lanes");
    dkey_bias = arena.tensor(DType::f32, {s.batch, s.heads, s.length}, "dkey_bias");
    dslope = arena.tensor(DType::f32, {s.batch, s.heads, s.length}, "dslope");
    device.run(Fill{slope, 0.01f});
  }

  // With the prior: the slope, and gradients of lanes, key bias and slope. Without: plain attention over d_h
  // coordinates.
  AttentionForward forward(bool prior) const {
    AttentionForward op;
    op.out = out;
    op.lse = lse;
    op.q = qkv.select(2, 0);
    op.k = qkv.select(2, 1);
    op.v = qkv.select(2, 2);
    if (prior) op.slope = slope;
    op.scale = 1 / std::sqrt(static_cast<float>(prior ? shape.content_dim() : shape.head_dim));
    op.causal = shape.causal;
    return op;
  }
  AttentionBackward backward(bool prior, bool deterministic) const {
    const AttentionForward forward_op = forward(prior);
    AttentionBackward op;
    op.dq = dqkv.select(2, 0);
    op.dk = dqkv.select(2, 1);
    op.dv = dqkv.select(2, 2);
    if (prior) op.dq_lanes = dq_lanes, op.dk_lanes = dk_lanes, op.dkey_bias = dkey_bias, op.dslope = dslope;
    op.delta = delta;
    op.dout = dout;
    op.out = out;
    op.lse = lse;
    op.q = forward_op.q;
    op.k = forward_op.k;
    op.v = forward_op.v;
    op.slope = forward_op.slope;
    op.scale = forward_op.scale;
    op.causal = shape.causal;
    op.content_dim = prior ? shape.content_dim() : shape.head_dim;
    op.deterministic = deterministic;
    return op;
  }
};

void time_shape(Bench& bench, const Shape& shape) {
  Attention attention(bench.device(), shape);
  for (const bool prior : {false, true}) {
    const nlohmann::ordered_json facts = {{"d_h", shape.head_dim}, {"T", shape.length},
                                          {"B", shape.batch},      {"H", shape.heads},
                                          {"prior", prior},        {"causal", shape.causal}};
    const AttentionForward forward = attention.forward(prior);
    bench.time("attention_forward", {shape.forward_flops(), 0}, facts, [&] { bench.device().run(forward); });
    for (const bool deterministic : {true, false}) {
      const AttentionBackward backward = attention.backward(prior, deterministic);
      nlohmann::ordered_json with_form = facts;
      with_form["deterministic"] = deterministic;
      bench.time("attention_backward", {2.5 * shape.forward_flops(), 0}, with_form,
                 [&] { bench.device().run(backward); });
    }
  }
}
}  // namespace

void bench_attention(Bench& bench, std::int64_t head_dim) {
  const std::int64_t tokens = bench.size(16384, 256), heads = bench.size(2048 / head_dim, 1),
                     modes = head_dim == 128 ? 4 : 2;
  for (std::int64_t length = bench.size(512, 128); length <= tokens; length *= 2)
    time_shape(bench, {tokens / length, length, heads, head_dim, modes, true});
  const std::int64_t length = bench.size(2048, 128);
  time_shape(bench, {tokens / length, length, heads, head_dim, modes, false});
}

void bench_decode(Bench& bench) {
  for (const std::int64_t length : {2048, 16384}) {
    Arena arena(bench.device());
    const std::int64_t batch = bench.size(16, 1), heads = bench.size(32, 1),
                       keys = bench.size(length, length / 8), head_dim = 64;
    const Tensor cache = arena.tensor(DType::bf16, {batch, keys, 2, heads, head_dim}, "cache");
    AttentionForward op;
    op.out = arena.tensor(DType::bf16, {batch, 1, heads, head_dim}, "out");
    op.lse = arena.tensor(DType::f32, {batch, heads, 1}, "lse");
    op.q = arena.tensor(DType::bf16, {batch, 1, heads, head_dim}, "q");
    op.k = cache.select(2, 0);
    op.v = cache.select(2, 1);
    op.slope = arena.tensor(DType::f32, {heads}, "slope");
    op.scale = 0.125f;
    bench.time("attention_decode", {0, work_of(op).bytes},
               {{"d_h", head_dim}, {"T", keys}, {"B", batch}, {"H", heads}}, [&] { bench.device().run(op); });
  }
}

}  // namespace goat::bench
