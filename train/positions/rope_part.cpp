#include "train/positions/rope_part.h"

#include <cmath>

#include "train/positions/position_table.h"

namespace goat {

namespace {

// scale base^(-r/modes), r = 0 .. modes - 1
std::vector<double> rope_frequencies(std::int64_t modes, double base, double scale) {
  std::vector<double> frequencies;
  for (std::int64_t r = 0; r < modes; ++r)
    frequencies.push_back(scale * std::pow(base, -static_cast<double>(r) / static_cast<double>(modes)));
  return frequencies;
}

class RopeLayer final : public PositionalLayer {
 public:
  RopeLayer(const Tensor& table, std::int64_t dim) : table_(table), dim_(dim) {}

  void forward(Device& device, const AttentionInputs& inputs) override {
    device.run(Rope{.q = turned(inputs.q),
                    .k = turned(inputs.k),
                    .fourier = table_,
                    .first_position = inputs.first_position});
  }
  void backward(Device& device, const AttentionGradients& gradients) override {
    device.run(
        Rope{.q = turned(gradients.dq), .k = turned(gradients.dk), .fourier = table_, .backward = true});
  }

 private:
  Tensor turned(const Tensor& x) const { return x.slice(3, 0, dim_); }

  const Tensor& table_;
  std::int64_t dim_;
};

class RopePart final : public PositionalPart {
 public:
  RopePart(const Config& config, bool interpolates)
      : dim_(config.rope_dim()),
        base_(config.model.rope_base),
        train_length_(config.data.seq_len),
        interpolates_(interpolates) {}

  void plan(const PassPlan& plan) override { table_.plan("rope", dim_ / 2, plan); }
  void fill_tables(Device& device) const override {
    const std::int64_t positions = table_.positions.shape[0];
    const double scale = interpolates_ && positions > train_length_
                             ? static_cast<double>(train_length_ - 1) / static_cast<double>(positions - 1)
                             : 1;
    table_.fill(device, rope_frequencies(dim_ / 2, base_, scale));
  }
  std::unique_ptr<PositionalLayer> layer(const ParameterSet&, const std::string&) const override {
    return std::make_unique<RopeLayer>(table_.fourier, dim_);
  }

 private:
  std::int64_t dim_;
  double base_;
  std::int64_t train_length_;
  bool interpolates_;
  PositionTable table_;
};

}  // namespace

std::unique_ptr<PositionalPart> make_rope(const Config& config, const ParameterSet&) {
  return std::make_unique<RopePart>(config, false);
}

std::unique_ptr<PositionalPart> make_rope_pi(const Config& config, const ParameterSet&) {
  return std::make_unique<RopePart>(config, true);
}

}  // namespace goat
