// The size of a launch: as launchers state it, and as a GPU takes it.
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

// Blocks in x, y and z. Wide enough for every product of extents, so that nothing is lost before it is
// checked.
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

// What a GPU would refuse in a launch, "" if nothing.
std::string launch_fault(const Grid& grid, dim3 block);

// The grid as a launch takes it, once launch_fault() has found nothing.
inline dim3 checked_size(const Grid& grid) {
  return {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z)};
}

// Calls body(first, count) for the parts of 0 .. extent that fit in a grid's y or z, one after the other.
template <class Body>
void for_each_part(std::int64_t extent, Body&& body) {
  for (std::int64_t first = 0; first < extent; first += Grid::most_yz())
    body(static_cast<int>(first), static_cast<int>(std::min(extent - first, Grid::most_yz())));
}

}  // namespace goat::GOAT_TARGET
