// Copies between floats of the host and tensors of f32 or bf16.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/device.h"

namespace goat {

void* element_of(const Tensor& array, std::int64_t offset);  // of a contiguous tensor

// Copies `elements` to the elements of `array` (f32 or bf16, contiguous) from `offset` on, rounded to
// nearest.
void upload_floats(Device& device, const Tensor& array, std::int64_t offset, std::span<const float> elements);

// Fills `elements` from the elements of `array` (f32 or bf16, contiguous) from `offset` on.
void download_floats(Device& device, std::span<float> elements, const Tensor& array, std::int64_t offset = 0);

}  // namespace goat
