// NCCL's names: for the GPU those of the library (nccl_library.cu loads it when one is called for the first
// time), for the simulated GPU those of kernels/simt/nccl.h.
#pragma once

#include "kernels/cuda/target.cuh"

#if GOAT_SIMT
#include "kernels/simt/nccl.h"
#else
#include <nccl.h>
#endif
