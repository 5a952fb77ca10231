#include "train/positions/rope_part.h"

#include <cmath>

#include "train/positions/position_table.h"

namespace goat {

namespace {

// base^(-r/modes), r = 0 .. modes - 1, where modes = d_h/2
std::vector<double> rope_frequencies(std::int64_t modes, double base) {
  std::vector<double> frequencies;
  for (std::int64_t r = 0; r < modes; ++r)
    frequencies.push_back(std::pow(base, -static_cast<double>(r) / static_cast<double>(modes)));
  return frequencies;
}

class RopeLayer final : public PositionalLayer {
 public:
  explicit RopeLayer(const Tensor& table) : table_(table) {}

  void forward(Device& device, const AttentionInputs& inputs) override {
    device.run(
        Rope{.q = inputs.q, .k = inputs.k, .fourier = table_, .first_position = inputs.first_position});
  }
  void backward(Device& device, const Tensor& dq, const Tensor& dk) override {
    device.run(Rope{.q = dq, .k = dk, .fourier = table_, .backward = true});
  }

 private:
  const Tensor& table_;
};

class RopePart final : public PositionalPart {
 public:
  explicit RopePart(const Config& config)
      : frequencies_(rope_frequencies(config.head_dim() / 2, config.model.rope_base)) {}

  void plan(const PassPlan& plan) override { table_.plan("rope", std::ssize(frequencies_), plan); }
  void fill_tables(Device& device) const override { table_.fill(device, frequencies_); }
  std::unique_ptr<PositionalLayer> layer(const ParameterSet&, const std::string&) const override {
    return std::make_unique<RopeLayer>(table_.fourier);
  }

 private:
  std::vector<double> frequencies_;
  PositionTable table_;
};

}  // namespace

std::unique_ptr<PositionalPart> make_rope(const Config& config) { return std::make_unique<RopePart>(config); }

}  // namespace goat
