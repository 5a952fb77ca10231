// Shapes for the tests of LayerNorm and RMSNorm.
#pragma once

#include <cstdint>
#include <vector>

namespace goat::test {

struct NormShape {
  std::int64_t rows, width;
};

// Odd widths, and on both sides of each at which the CUDA kernels spread a row over threads in another way: a
// row of `count` vectors of 16 bytes, 4 elements of f32 or 8 of bf16.
inline std::vector<NormShape> norm_shapes() {
  std::vector<NormShape> shapes{{1, 1},   {1, 3},    {3, 17},   {37, 64},  {50, 129}, {5, 768}, {6, 384},
                                {2, 500}, {2, 1000}, {5, 1032}, {2, 2056}, {2, 4104}, {1, 8200}};
  for (const std::int64_t count : {64, 96, 128, 256, 512, 1024})
    for (const std::int64_t size : {4, 8})
      for (const std::int64_t more : {-1, 1}) shapes.push_back({3, (count + more) * size});
  return shapes;
}

}  // namespace goat::test
