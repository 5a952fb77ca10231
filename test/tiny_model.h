// A model with random parameters, small enough for the naive oracle.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "test/model_oracle.h"
#include "test/operand.h"
#include "train/model/model.h"
#include "train/model/model_parameters.h"

namespace goat::test::tiny_model {

using Settings = std::vector<std::string>;

inline Settings with(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

// A model small enough for the naive oracle, with sizes that fit no tile.
inline Config tiny_config(const Settings& settings = {}) {
  const Settings all = {"model.layers=2",
                        "model.heads=2",
                        "model.width=24",
                        "model.ff_width=40",
                        "model.vocab=11",
                        "data.seq_len=9",
                        "prior.pos_rank=2",
                        "prior.abs_rank=3",
                        "prior.init=random",
                        "prior.recency=free",
                        "train.batch=4",
                        "train.micro_batch=2",
                        "train.steps=5",
                        "train.warmup=2",
                        "train.lr=3e-3",
                        "train.min_lr=0",
                        "prior.sink_init_scale=0.5",
                        "eval.tokens=48"};
  return load_config("copy_mixture", with(all, settings));
}

// The parameters of a model on a device, without gradients. Their values are not set.
struct TestParameters {
  TestParameters(const Config& config, Device& device) {
    declare_parameters(config, parameters);
    parameters.plan(memory, false);
    memory.allocate(device);
    parameters.bind();
  }

  ParameterSet parameters;
  MemoryPlan memory;
};

// A model with random parameters (also those that start at zero) on a device, and its stored values in
// double.
struct TestModel {
  TestModel(const Config& config, Device& target, BatchShape shape, std::uint64_t seed,
            DType dtype = DType::f32)
      : TestModel(config, target, target.info(), shape, seed, dtype) {}

  // The same as on a device of other sizes.
  TestModel(const Config& config, Device& target, const DeviceInfo& info, BatchShape shape,
            std::uint64_t seed, DType dtype)
      : device(target), parameters(dtype) {
    declare_parameters(config, parameters);
    parameters.plan(memory, true);
    model = std::make_unique<Model>(config, info, shape, true, parameters, memory);
    memory.allocate(device);
    parameters.bind();
    values = goat::test::randomize(device, parameters, seed);
    model->bind(device);
    goat::test::Rng rng(seed + 2);
    std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(config.model.vocab) - 1);
    for (std::int64_t n = 0; n < shape.tokens(); ++n) {
      inputs.push_back(token(rng));
      targets.push_back(token(rng));
    }
    model->load(device, inputs, targets);
  }

  double mean_loss() {
    std::vector<float> losses(inputs.size());
    device.download(losses.data(), model->losses().data, model->losses().bytes());
    double sum = 0;
    for (const float loss : losses) sum += static_cast<double>(loss);
    return sum / static_cast<double>(losses.size());
  }

  // Gives the stored tensor of this name other values, row-major.
  void write(const std::string& name, const std::vector<double>& of_tensor) {
    for (const StoredTensor& tensor : parameters.stored())
      if (tensor.name == name)
        parameters.write(device, tensor, std::vector<float>(of_tensor.begin(), of_tensor.end()));
    values.at(name) = of_tensor;
  }

  // The gradients of the mean loss, in place of those before.
  void compute_gradients() {
    parameters.zero_gradients(device);
    model->forward_backward(device, 1.0f / static_cast<float>(inputs.size()));
  }

  // The gradient of a stored tensor, row-major.
  std::vector<double> gradient(const StoredTensor& tensor) {
    Tensor view = tensor.layout;
    view.dtype = DType::f32;
    view.data = tensor.parameter->grad.as<float>() + tensor.offset;
    return goat::test::values_of(device, view);
  }

  Device& device;
  ParameterSet parameters;
  MemoryPlan memory;
  std::unique_ptr<Model> model;
  goat::test::StoredValues values;
  std::vector<std::int32_t> inputs, targets;
};

}  // namespace goat::test::tiny_model
