#include "train/positions/absolute_part.h"

#include <cmath>

namespace goat {

namespace {

constexpr double sinusoid_base = 10000;
constexpr double learned_std = 0.02;  // as the embedding's

// [rows, width]
std::vector<float> sinusoids(std::int64_t rows, std::int64_t width) {
  std::vector<float> table(static_cast<std::size_t>(rows * width));
  const auto columns = static_cast<double>(width);
  const double size = 1 / std::sqrt(columns);
#pragma omp parallel for schedule(static)
  for (std::int64_t c = 0; c < width; ++c) {
    const double frequency = std::pow(sinusoid_base, -static_cast<double>(c - c % 2) / columns);
    for (std::int64_t p = 0; p < rows; ++p) {
      const double angle = frequency * static_cast<double>(p);
      table[static_cast<std::size_t>(p * width + c)] =
          static_cast<float>(size * (c % 2 == 0 ? std::sin(angle) : std::cos(angle)));
    }
  }
  return table;
}

// Adds rows of a table. The layers have nothing to do.
class AbsolutePart : public PositionalPart {
 public:
  void plan(const PassPlan& plan) override { length_ = plan.shape.length; }
  void add_to_stream(Device& device, const Tensor& stream, std::int64_t first_position) const override {
    device.run(
        AddPositions{.stream = by_position(stream), .table = table(), .first_position = first_position});
  }
  std::unique_ptr<PositionalLayer> layer(const ParameterSet&, const std::string&) const override {
    return std::make_unique<PositionalLayer>();
  }

 protected:
  virtual const Tensor& table() const = 0;          // f32, a row for each position
  Tensor by_position(const Tensor& stream) const {  // [N, C] -> [B, T, C]
    return stream.reshape({stream.shape[0] / length_, length_, stream.shape[1]});
  }

 private:
  std::int64_t length_ = 0;
};

class SinusoidalPart final : public AbsolutePart {
 public:
  void plan(const PassPlan& plan) override {
    AbsolutePart::plan(plan);
    plan.workspace("sinusoids", DType::f32, {plan.shape.positions(), plan.config.model.width}, table_);
  }
  void fill_tables(Device& device) const override {
    const std::vector<float> values = sinusoids(table_.shape[0], table_.shape[1]);
    device.upload(table_.data, values.data(), table_.bytes());
  }

 private:
  const Tensor& table() const override { return table_; }
  Tensor table_;
};

class LearnedPositionsPart final : public AbsolutePart {
 public:
  explicit LearnedPositionsPart(const ParameterSet& parameters)
      : positions_(parameters.at("position_embedding.weight")) {}

  void plan(const PassPlan& plan) override {
    AbsolutePart::plan(plan);
    require_length(plan.config, plan.shape.positions(), "a pass");
  }
  void stream_backward(Device& device, const Tensor& dstream) const override {
    device.run(AddPositionsBackward{.dtable = positions_.grad, .dstream = by_position(dstream)});
  }

 private:
  const Tensor& table() const override { return positions_.value; }
  const Parameter& positions_;
};

}  // namespace

void declare_learned_positions(const Config& config, ParameterSet& parameters) {
  parameters.declare("position_embedding.weight", {config.data.seq_len, config.model.width},
                     ParameterRole::vector, {.std = learned_std});
}

std::unique_ptr<PositionalPart> make_sinusoidal(const Config&, const ParameterSet&) {
  return std::make_unique<SinusoidalPart>();
}

std::unique_ptr<PositionalPart> make_learned_positions(const Config&, const ParameterSet& parameters) {
  return std::make_unique<LearnedPositionsPart>(parameters);
}

}  // namespace goat
