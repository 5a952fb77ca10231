#include "train/positions/position_table.h"

#include <numeric>

namespace goat {

void PositionTable::plan(const std::string& name, std::int64_t modes, const PassPlan& plan) {
  const std::int64_t rows = plan.shape.positions();
  plan.workspace(name + ".positions", DType::i32, {rows, 1}, positions);
  plan.workspace(name + ".frequency", DType::f64, {modes}, frequency);
  plan.workspace(name + ".fourier", DType::f32, {rows, modes, 2}, fourier);
}

void PositionTable::fill(Device& device, const std::vector<double>& frequencies) const {
  std::vector<std::int32_t> index(static_cast<std::size_t>(positions.shape[0]));
  std::iota(index.begin(), index.end(), 0);
  device.upload(positions.data, index.data(), positions.bytes());
  device.upload(frequency.data, frequencies.data(), frequency.bytes());
  device.run(FourierTable{.table = fourier, .frequency = frequency, .positions = positions});
}

}  // namespace goat
