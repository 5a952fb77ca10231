#include "train/profile/operation_work.h"

#include <initializer_list>

namespace goat {

namespace {
// Absent operands have no elements to move.
double bytes_of(std::initializer_list<Tensor> operands) {
  double total = 0;
  for (const Tensor& operand : operands)
    if (operand) total += static_cast<double>(operand.bytes());
  return total;
}

double matmul_flops(std::int64_t m, std::int64_t n, std::int64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

// FLOPs of one product q k^T over the (query, key) pairs that take part.
template <class Attention>
double score_flops(const Attention& op) {
  const auto queries = static_cast<double>(op.q.shape[1]), keys = static_cast<double>(op.k.shape[1]);
  const double pairs = op.causal ? queries * (2 * keys - queries + 1) / 2 : queries * keys;
  return 2 * pairs * static_cast<double>(op.q.shape[0] * op.q.shape[2] * op.q.shape[3]);
}

// Lanes are the coordinates content_dim .. d_h of q or k.
double lane_bytes(const Tensor& x, std::int64_t content_dim) {
  return x ? bytes_of({x.slice(3, content_dim, x.shape[3] - content_dim)}) : 0.0;
}
}  // namespace

Work work_of(const EmbeddingForward& op) { return {0, bytes_of({op.out, op.out, op.tokens})}; }
// Each row of dout once, and a row of dtable twice.
Work work_of(const EmbeddingBackward& op) {
  const double row_bytes = static_cast<double>(op.dout.elements()) * sizeof(float);
  return {0, bytes_of({op.dout, op.tokens}) + 2 * row_bytes};
}

// The table's rows stay in cache from sequence to sequence.
Work work_of(const AddPositions& op) {
  const std::int64_t rows = op.stream.shape[1];
  return {0, bytes_of({op.stream, op.stream, op.table.slice(0, op.first_position, rows)})};
}
Work work_of(const AddPositionsBackward& op) {
  const Tensor rows = op.dtable.slice(0, 0, op.dstream.shape[1]);
  return {0, bytes_of({op.dstream, rows, rows})};
}

Work work_of(const LayerNormForward& op) {
  return {0, bytes_of({op.out, op.mean, op.rstd, op.sum, op.x, op.residual, op.weight, op.bias})};
}
Work work_of(const LayerNormBackward& op) {
  return {0, bytes_of({op.dsum, op.dsum, op.dout, op.sum, op.mean, op.rstd, op.weight})};
}

Work work_of(const RmsNormForward& op) {
  return {0, bytes_of({op.out, op.rstd, op.sum, op.x, op.residual, op.weight})};
}
Work work_of(const RmsNormBackward& op) {
  return {0, bytes_of({op.dsum, op.dsum, op.dout, op.sum, op.rstd, op.weight})};
}

Work work_of(const LinearForward& op) {
  return {matmul_flops(op.x.shape[0], op.weight.shape[0], op.weight.shape[1]),
          bytes_of({op.out, op.x, op.weight, op.bias})};
}
Work work_of(const LinearBackwardInput& op) {
  return {matmul_flops(op.dout.shape[0], op.weight.shape[0], op.weight.shape[1]),
          bytes_of({op.dx, op.dout, op.weight})};
}
Work work_of(const LinearBackwardWeight& op) {
  return {matmul_flops(op.dout.shape[0], op.dweight.shape[0], op.dweight.shape[1]),
          bytes_of({op.dweight, op.dweight, op.dout, op.x})};
}

Work work_of(const GeluForward& op) { return {0, bytes_of({op.out, op.x})}; }
Work work_of(const GeluBackward& op) { return {0, bytes_of({op.dx, op.dout, op.x})}; }
Work work_of(const LinearGeluForward& op) {
  return {matmul_flops(op.x.shape[0], op.weight.shape[0], op.weight.shape[1]),
          bytes_of({op.out, op.projected, op.x, op.weight, op.bias})};
}
Work work_of(const LinearGeluBackwardInput& op) {
  return {matmul_flops(op.dout.shape[0], op.weight.shape[0], op.weight.shape[1]),
          bytes_of({op.dprojected, op.dout, op.weight, op.projected})};
}
Work work_of(const SwigluForward& op) { return {0, bytes_of({op.out, op.gate, op.up})}; }
Work work_of(const SwigluBackward& op) { return {0, bytes_of({op.dgate, op.dup, op.dout, op.gate, op.up})}; }
Work work_of(const Rope& op) { return {0, bytes_of({op.q, op.q, op.k, op.k, op.fourier})}; }

Work work_of(const FourierTable& op) { return {0, bytes_of({op.table, op.positions})}; }
Work work_of(const SinkFeatures& op) { return {0, bytes_of({op.features, op.positions})}; }
Work work_of(const SinkForward& op) {
  const double flops = matmul_flops(op.features.shape[0], op.w1.shape[0], op.w1.shape[1] + op.w2.shape[0]);
  return {flops, bytes_of({op.key_bias, op.hidden, op.features, op.w1, op.w2})};
}
Work work_of(const SinkBackward& op) {
  const double flops =
      matmul_flops(op.features.shape[0], op.dw1.shape[0], op.dw1.shape[1] + 2 * op.w2.shape[0]);
  return {flops, bytes_of({op.dkey_bias, op.dkey_bias_sum, op.hidden, op.features, op.w2})};
}

Work work_of(const PriorLanesForward& op) {
  return {0, lane_bytes(op.q, op.content_dim) + lane_bytes(op.k, op.content_dim) +
                 bytes_of({op.key_bias, op.fourier})};
}
Work work_of(const PriorLanesBackward& op) {
  return {0, bytes_of({op.dq_lanes, op.dk_lanes, op.dslope, op.fourier})};
}
Work work_of(const SoftplusForward& op) { return {0, bytes_of({op.out, op.x})}; }
Work work_of(const SoftplusBackward& op) { return {0, bytes_of({op.dx, op.dx, op.dout, op.x})}; }

Work work_of(const ForgetGatesForward& op) {
  return {matmul_flops(op.x.shape[0], op.weight.shape[0], op.x.shape[1]),
          bytes_of({op.gate, op.x, op.weight})};
}
Work work_of(const ForgetGatesBackward& op) {
  return {2 * matmul_flops(op.x.shape[0], op.weight.shape[0], op.x.shape[1]),
          bytes_of({op.dx, op.dx, op.dweight, op.dweight, op.dgate, op.x, op.weight})};
}
Work work_of(const ForgetBiasForward& op) {
  return {0, bytes_of({op.gate, op.key_bias.slice(2, op.first_position, op.gate.shape[1])})};
}
Work work_of(const ForgetBiasBackward& op) { return {0, bytes_of({op.dgate, op.dkey_bias, op.gate})}; }

// q k^T and p v.
Work work_of(const AttentionForward& op) {
  return {2 * score_flops(op), bytes_of({op.out, op.lse, op.q, op.k, op.v, op.key_bias})};
}
// q k^T again, dout v^T, dq, dk and dv.
Work work_of(const AttentionBackward& op) {
  return {5 * score_flops(op), bytes_of({op.dq, op.dk, op.dv, op.dq_lanes, op.dk_lanes, op.dkey_bias,
                                         op.dslope, op.dout, op.out, op.lse, op.q, op.k, op.v, op.key_bias})};
}

Work work_of(const CrossEntropy& op) {
  return {0, bytes_of({op.logits, op.losses, op.targets}) + (op.backward ? bytes_of({op.logits}) : 0.0)};
}
Work work_of(const AddLoss& op) { return {0, bytes_of({op.losses, op.weights})}; }
Work work_of(const SquaredSums& op) { return {0, bytes_of({op.x, op.sums})}; }
Work work_of(const StepVerdict& op) {
  Work work{0, bytes_of({op.losses})};
  for (const ChunkSums& squares : op.squares) work.bytes += bytes_of({squares.sums});
  return work;
}
Work work_of(const AdamW& op) {
  return {0, bytes_of({op.param, op.param, op.master, op.master, op.m, op.m, op.v, op.v, op.grad})};
}
Work work_of(const Fill& op) { return {0, bytes_of({op.out})}; }
Work work_of(const Cast& op) { return {0, bytes_of({op.out, op.x})}; }
Work work_of(const SumParts& op) { return {0, bytes_of({op.out, op.parts})}; }
Work work_of(const WeightsHash& op) { return {0, bytes_of({op.x})}; }

}  // namespace goat
