// The size of a launch: as 64-bit numbers in Grid, and as the dim3 of a launch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>

#if defined(__CUDACC__)
#define GOAT_SIMT 0
#define GOAT_TARGET on_cuda
#else
#define GOAT_SIMT 1
#define GOAT_TARGET on_simt
#endif

namespace goat::GOAT_TARGET {

// The number of blocks in x, y and z. 64 bits hold every product of extents, so that
// launch_fault() can check it.
struct Grid {
  std::int64_t x, y, z;
  Grid(std::int64_t x_, std::int64_t y_ = 1, std::int64_t z_ = 1) : x(x_), y(y_), z(z_) {}
  Grid(dim3 size) : Grid(size.x, size.y, size.z) {}

  static constexpr std::int64_t most_x = 2147483647;
#if GOAT_SIMT
  static std::int64_t most_yz();  // Options::grid_limit
#else
  static constexpr std::int64_t most_yz() { return 65535; }
#endif
};

// The reason why a GPU would refuse the launch, or "".
std::string launch_fault(const Grid& grid, dim3 block);

// The grid as dim3. Call this only if launch_fault() returned "".
inline dim3 checked_size(const Grid& grid) {
  return {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z)};
}

// Splits 0 .. extent into parts that fit into a grid's y or z, and calls body(first, count) for each part.
template <class Body>
void for_each_part(std::int64_t extent, Body&& body) {
  for (std::int64_t first = 0; first < extent; first += Grid::most_yz())
    body(static_cast<int>(first), static_cast<int>(std::min(extent - first, Grid::most_yz())));
}

}  // namespace goat::GOAT_TARGET
