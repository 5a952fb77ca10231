// A pass reads no weights of a unit before its hook, and adds nothing to its gradients after it.
#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/model_variants.h"
#include "test/tiny_model.h"
#include "train/memory/pass_hooks.h"

using namespace goat;
using goat::test::tiny_model::TestModel;

namespace {

using Floats = std::vector<float>;

// The unit of a parameter, by its name.
std::size_t unit_of(const std::string& name, std::int64_t layers) {
  if (name.starts_with("blocks.")) return static_cast<std::size_t>(std::stoi(name.substr(7))) + 1;
  const bool embedding = name.starts_with("embedding") || name.starts_with("position_embedding");
  return embedding ? 0 : static_cast<std::size_t>(layers) + 1;
}

Floats floats_of(Device& device, const Tensor& tensor) {
  Floats values(static_cast<std::size_t>(tensor.elements()));
  device.download(values.data(), tensor.data, tensor.bytes());
  return values;
}

// Brings the weights of a unit when its hook is called, and keeps its gradients as they are then.
class LateWeights final : public PassHooks {
 public:
  LateWeights(TestModel& model, std::int64_t layers) : model_(model), layers_(layers) {
    for (const Parameter& parameter : model.parameters.all()) {
      weights_.push_back(floats_of(model.device, parameter.value));
      const Floats nothing(weights_.back().size(), std::numeric_limits<float>::quiet_NaN());
      model.device.upload(parameter.value.data, nothing.data(), parameter.value.bytes());
      gradients_.emplace_back();
    }
  }

  void before_forward(std::size_t unit) override {
    calls.push_back({unit, false});
    for (std::size_t i = 0; i < weights_.size(); ++i)
      if (const Parameter& parameter = model_.parameters.all()[i]; unit_of(parameter.name, layers_) == unit)
        model_.device.upload(parameter.value.data, weights_[i].data(), parameter.value.bytes());
  }
  void after_backward(std::size_t unit) override {
    calls.push_back({unit, true});
    for (std::size_t i = 0; i < weights_.size(); ++i)
      if (const Parameter& parameter = model_.parameters.all()[i]; unit_of(parameter.name, layers_) == unit)
        gradients_[i] = floats_of(model_.device, parameter.grad);
  }

  // The parameters whose gradients have changed after their hook, or that had none.
  std::string changed_gradients() const {
    std::string names;
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      const Parameter& parameter = model_.parameters.all()[i];
      if (gradients_[i] != floats_of(model_.device, parameter.grad)) names += parameter.name + " ";
    }
    return names;
  }

  std::vector<std::pair<std::size_t, bool>> calls;

 private:
  TestModel& model_;
  const std::int64_t layers_;
  std::vector<Floats> weights_, gradients_;  // by parameter
};

}  // namespace

TEST_CASE("pass hooks: weights may come as late as the hook of their unit, gradients may leave after it") {
  for (const std::string& name : goat::test::device_names())
    for (const auto& variant : goat::test::model_variants()) {
      INFO("device " << name << ", " << variant.name);
      const auto device = open_device(name);
      const Config config = goat::test::tiny_model::tiny_config(variant.settings);
      const BatchShape shape{2, config.data.seq_len};
      TestModel plain(config, *device, shape, 5), hooked(config, *device, shape, 5);
      for (TestModel* model : {&plain, &hooked}) model->parameters.zero_gradients(*device);
      plain.model->forward_backward(*device, 0.1f);
      LateWeights hooks(hooked, config.model.layers);
      hooked.model->forward_backward(*device, 0.1f, {}, &hooks);

      CHECK(hooks.calls ==
            std::vector<std::pair<std::size_t, bool>>{
                {0, false}, {1, false}, {2, false}, {3, false}, {3, true}, {2, true}, {1, true}, {0, true}});
      CHECK(hooked.parameters.units() == 4);
      CHECK(floats_of(*device, hooked.model->losses()) == floats_of(*device, plain.model->losses()));
      CHECK(hooks.changed_gradients().empty());
      for (std::size_t i = 0; i < plain.parameters.all().size(); ++i)
        CHECK(floats_of(*device, hooked.parameters.all()[i].grad) ==
              floats_of(*device, plain.parameters.all()[i].grad));
    }
}
