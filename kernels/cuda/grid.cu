#include "kernels/cuda/grid.h"

namespace goat::GOAT_TARGET {

namespace {
std::string triple(std::int64_t x, std::int64_t y, std::int64_t z) {
  std::string text;
  for (const std::int64_t extent : {x, y, z})
    text.append(text.empty() ? "(" : ",").append(std::to_string(extent));
  return text += ")";
}
}  // namespace

std::string launch_fault(const Grid& grid, dim3 block) {
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.z > 64)
    return std::string("a block of ") + triple(block.x, block.y, block.z) + " = " + std::to_string(threads) +
           " threads; 1 to 1024 are allowed, at most 64 in z";
  const auto within = [](std::int64_t extent, std::int64_t most) { return extent >= 1 && extent <= most; };
  const std::int64_t most = Grid::most_yz();
  if (!within(grid.x, Grid::most_x) || !within(grid.y, most) || !within(grid.z, most))
    return std::string("a grid of ") + triple(grid.x, grid.y, grid.z) + " blocks; at least 1 and at most " +
           triple(Grid::most_x, most, most) + " are allowed";
  return {};
}

}  // namespace goat::GOAT_TARGET
