#include "train/memory/float_copies.h"

#include <algorithm>
#include <vector>

#include "kernels/bf16_bits.h"

namespace goat {

void* element_of(const Tensor& array, std::int64_t offset) {
  return static_cast<char*>(array.data) + static_cast<std::size_t>(offset) * size_of(array.dtype);
}

void upload_floats(Device& device, const Tensor& array, std::int64_t offset,
                   std::span<const float> elements) {
  void* const to = element_of(array, offset);
  if (array.dtype == DType::f32) return device.upload(to, elements.data(), elements.size_bytes());
  std::vector<std::uint16_t> rounded(elements.size());
  std::ranges::transform(elements, rounded.begin(), [](float x) { return bf16_bits(x); });
  device.upload(to, rounded.data(), rounded.size() * sizeof(std::uint16_t));
}

void download_floats(Device& device, std::span<float> elements, const Tensor& array, std::int64_t offset) {
  const void* const from = element_of(array, offset);
  if (array.dtype == DType::f32) return device.download(elements.data(), from, elements.size_bytes());
  std::vector<std::uint16_t> rounded(elements.size());
  device.download(rounded.data(), from, rounded.size() * sizeof(std::uint16_t));
  std::ranges::transform(rounded, elements.begin(), bf16_value);
}

}  // namespace goat
