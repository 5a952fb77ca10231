// The pass over keys for head dimensions that are padded to 32.
#include "kernels/cuda/attention/attention_backward_keys.cuh"

namespace goat::GOAT_TARGET {

template void attention_backward_keys_of<32>(const BackwardArguments<bf16>&, int, Family, float*, Stream);

}  // namespace goat::GOAT_TARGET
