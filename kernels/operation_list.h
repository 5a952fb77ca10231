// The one list of operations. Code that needs a function for each operation generates it from this list.
#pragma once

// X(Operation, name) for every struct of kernels/operations.h; `name` is used in messages and tables.
#define GOAT_FOR_EACH_OPERATION(X)                       \
  X(EmbeddingForward, embedding_forward)                 \
  X(EmbeddingBackward, embedding_backward)               \
  X(AddPositions, add_positions)                         \
  X(AddPositionsBackward, add_positions_backward)        \
  X(LayerNormForward, layernorm_forward)                 \
  X(LayerNormBackward, layernorm_backward)               \
  X(RmsNormForward, rmsnorm_forward)                     \
  X(RmsNormBackward, rmsnorm_backward)                   \
  X(LinearForward, linear_forward)                       \
  X(LinearBackwardInput, linear_backward_input)          \
  X(LinearBackwardWeight, linear_backward_weight)        \
  X(GeluForward, gelu_forward)                           \
  X(GeluBackward, gelu_backward)                         \
  X(LinearGeluForward, linear_gelu_forward)              \
  X(LinearGeluBackwardInput, linear_gelu_backward_input) \
  X(SwigluForward, swiglu_forward)                       \
  X(SwigluBackward, swiglu_backward)                     \
  X(Rope, rope)                                          \
  X(FourierTable, fourier_table)                         \
  X(SinkFeatures, sink_features)                         \
  X(SinkForward, sink_forward)                           \
  X(SinkBackward, sink_backward)                         \
  X(PriorLanesForward, prior_lanes_forward)              \
  X(PriorLanesBackward, prior_lanes_backward)            \
  X(SoftplusForward, softplus_forward)                   \
  X(SoftplusBackward, softplus_backward)                 \
  X(ForgetGatesForward, forget_gates_forward)            \
  X(ForgetGatesBackward, forget_gates_backward)          \
  X(ForgetBiasForward, forget_bias_forward)              \
  X(ForgetBiasBackward, forget_bias_backward)            \
  X(AttentionForward, attention_forward)                 \
  X(AttentionBackward, attention_backward)               \
  X(CrossEntropy, cross_entropy)                         \
  X(AddLoss, add_loss)                                   \
  X(SquaredSums, squared_sums)                           \
  X(StepVerdict, step_verdict)                           \
  X(AdamW, adamw)                                        \
  X(Fill, fill)                                          \
  X(Cast, cast)                                          \
  X(SumParts, sum_parts)                                 \
  X(WeightsHash, weights_hash)
