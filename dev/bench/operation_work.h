// The arithmetic and the memory traffic that an operation cannot avoid.
#pragma once

#include "kernels/operations.h"

namespace goat::bench {

struct Work {
  double flops = 0;  // of matrix products only (a multiply-add is 2); what is elementwise counts as bytes
  double bytes = 0;  // every operand read once and written once; += is both
};

Work work_of(const EmbeddingForward& op);
Work work_of(const EmbeddingBackward& op);
Work work_of(const LayerNormForward& op);
Work work_of(const LayerNormBackward& op);
Work work_of(const RmsNormForward& op);
Work work_of(const RmsNormBackward& op);
Work work_of(const LinearForward& op);
Work work_of(const LinearBackwardInput& op);
Work work_of(const LinearBackwardWeight& op);
Work work_of(const GeluForward& op);
Work work_of(const GeluBackward& op);
Work work_of(const SwigluForward& op);
Work work_of(const SwigluBackward& op);
Work work_of(const Rope& op);
Work work_of(const FourierTable& op);
Work work_of(const SinkFeatures& op);
Work work_of(const SinkForward& op);
Work work_of(const SinkBackward& op);
Work work_of(const PriorLanesForward& op);
Work work_of(const PriorLanesBackward& op);
Work work_of(const SoftplusForward& op);
Work work_of(const SoftplusBackward& op);
Work work_of(const AttentionForward& op);
Work work_of(const AttentionBackward& op);
Work work_of(const CrossEntropy& op);
Work work_of(const AddLoss& op);
Work work_of(const GradientNorm& op);
Work work_of(const AdamW& op);
Work work_of(const Fill& op);
Work work_of(const Cast& op);

}  // namespace goat::bench
