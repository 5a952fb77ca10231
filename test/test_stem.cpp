// The stem and its positional parts: what a part may add to the stream, and when.

#include "train/model/stem.h"

#include "kernels/cpu/cpu_device.h"
#include "test/catch.h"
#include "test/operand.h"
#include "train/model/model_parameters.h"

using namespace goat;

namespace {

// Multiplies the stream and adds to it, by its own numbers and the first position, so that the order of parts
// shows. Keeps the gradient that it is given.
class AffinePart final : public PositionalPart {
 public:
  AffinePart(float factor, float term, std::vector<const PositionalPart*>& calls)
      : factor_(factor), term_(term), calls_(calls) {}
  void add_to_stream(Device&, const Tensor& stream, std::int64_t first_position) const override {
    float* x = stream.as<float>();
    for (std::int64_t i = 0; i < stream.elements(); ++i)
      x[i] = factor_ * x[i] + term_ + static_cast<float>(first_position);
    calls_.push_back(this);
  }
  void stream_backward(Device&, const Tensor& dstream) const override {
    CHECK(dstream.as<float>()[0] == 3);
    calls_.push_back(this);
  }
  std::unique_ptr<PositionalLayer> layer(const ParameterSet&, const std::string&) const override {
    return std::make_unique<PositionalLayer>();
  }

 private:
  float factor_, term_;
  std::vector<const PositionalPart*>& calls_;
};

}  // namespace

TEST_CASE("stem: parts add to the embedded tokens in order, and see the stream's gradient in reverse") {
  CpuDevice device;
  const Config config = load_config("copy_mixture", {"model.layers=1", "model.vocab=11", "data.seq_len=3"});
  std::vector<const PositionalPart*> calls;
  PositionalParts parts;
  parts.push_back(std::make_unique<AffinePart>(2.0f, 1.0f, calls));
  parts.push_back(std::make_unique<AffinePart>(4.0f, 5.0f, calls));
  ParameterSet parameters;
  MemoryPlan memory;
  declare_parameters(config, parameters);
  parameters.plan(memory, true);
  const Stem stem({.config = config,
                   .device = device.info(),
                   .shape = {1, 3},
                   .training = true,
                   .dtype = DType::f32,
                   .memory = memory},
                  parameters, parts);
  memory.allocate(device);
  parameters.bind();
  parameters.initialize(device, 1);

  const std::vector<std::int32_t> tokens = {7, 0, 7};
  device.upload(stem.tokens().data, tokens.data(), stem.tokens().bytes());
  const float first_position = 6;
  const Tensor& stream = stem.forward(device, 6);
  const Parameter& table = parameters.at("embedding.padded");
  for (std::int64_t t = 0; t < 3; ++t)
    for (std::int64_t c = 0; c < config.model.width; ++c) {
      const float embedded =
          table.value.as<float>()[tokens[static_cast<std::size_t>(t)] * config.model.width + c];
      const float after_first = 2 * embedded + 1 + first_position;
      CHECK(stream.as<float>()[t * config.model.width + c] == 4 * after_first + 5 + first_position);
    }
  CHECK(calls == std::vector<const PositionalPart*>{parts[0].get(), parts[1].get()});

  calls.clear();
  device.run(Fill{.out = stream, .value = 3});  // stands for the gradient of the stream
  stem.backward(device, stream);
  CHECK(calls == std::vector<const PositionalPart*>{parts[1].get(), parts[0].get()});
  CHECK(table.grad.as<float>()[7 * config.model.width] == 6);  // token 7 stands at two places
  CHECK(table.grad.as<float>()[0] == 3);
  CHECK(table.grad.as<float>()[config.model.width] == 0);
}
