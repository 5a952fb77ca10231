// LayerNorm with the residual connection before it.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/norm.cuh"

namespace goat::GOAT_TARGET {

// A warp or a block takes a row and keeps it in registers between the passes. Memory traffic: 2 elements for
// each element of x (one read, one written), or 4 with a residual.
void CudaDevice::launch(const LayerNormForward& op) {
  with_element_type(op.x.dtype, [&]<class T>(T) {
    enqueue_norm_forward<T, true>(stream_, {.out = data_of<T>(op.out),
                                            .sum = data_of<T>(op.sum),
                                            .mean = data_of<float>(op.mean),
                                            .rstd = data_of<float>(op.rstd),
                                            .x = data_of<T>(op.x),
                                            .residual = data_of<T>(op.residual),
                                            .weight = data_of<float>(op.weight),
                                            .bias = data_of<float>(op.bias),
                                            .rows = op.x.shape[0],
                                            .width = static_cast<int>(op.x.shape[1]),
                                            .eps = op.eps});
  });
}

std::size_t CudaDevice::workspace(const LayerNormBackward& op) const {
  return norm_partials_bytes<true>(op.dout.shape[0], op.dout.shape[1]);
}

// A block takes a range of rows. Memory traffic: 4 elements for each element of dout, and 16 C bytes of
// partial sums for each of at most 512 blocks.
void CudaDevice::launch(const LayerNormBackward& op) {
  auto* partials = static_cast<float*>(workspace_.take(op));
  with_element_type(op.dout.dtype, [&]<class T>(T) {
    const NormBackward<T> norm{.dsum = data_of<T>(op.dsum),
                               .dweight = data_of<float>(op.dweight),
                               .dbias = data_of<float>(op.dbias),
                               .dout = data_of<T>(op.dout),
                               .sum = data_of<T>(op.sum),
                               .weight = data_of<float>(op.weight),
                               .mean = data_of<float>(op.mean),
                               .rstd = data_of<float>(op.rstd),
                               .rows = op.dout.shape[0],
                               .width = static_cast<int>(op.dout.shape[1])};
    enqueue_norm_backward<T, true>(stream_, norm, partials);
  });
}

}  // namespace goat::GOAT_TARGET
