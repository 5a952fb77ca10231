// What saves memory: recomputation in the backward pass, which changes no bit, and logits in chunks, which
// change no more than the order of fp32 sums.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/model_variants.h"
#include "test/operand.h"
#include "test/step_state.h"
#include "test/tiny_model.h"
#include "train/memory/memory.h"

using namespace goat;
using namespace goat::test::tiny_model;

namespace {
using Values = std::vector<double>;

void update(TestModel& test) {
  const DeviceBuffer memory(test.device, sizeof(StepState));
  StepState scalars{};
  scalars.learning_rate = 1e-2f;
  test.device.upload(memory.data(), &scalars, sizeof scalars);
  auto* const state = static_cast<StepState*>(memory.data());
  std::vector<Tensor> gradients;
  for (const auto& group : test.parameters.groups()) gradients.push_back(group.grad);
  goat::test::judge(test.device, state, 0, gradients, 1);
  for (const auto& group : test.parameters.groups())
    test.device.run(AdamW{.state = state,
                          .param = group.value,
                          .master = group.master,
                          .m = group.m,
                          .v = group.v,
                          .grad = group.grad});
  test.device.synchronize();
}

// The losses and all gradients of three training steps.
std::vector<Values> results_of_steps(const Config& config, Device& device, DType dtype) {
  TestModel test(config, device, {2, config.data.seq_len}, 7, dtype);
  std::vector<Values> results;
  for (int step = 0; step < 3; ++step) {
    test.parameters.zero_gradients(device);
    test.model->forward_backward(device, 0.1f);
    const Values losses = goat::test::values_of(device, test.model->losses());
    if (step > 0) CHECK(losses != results.front());
    results.push_back(losses);
    for (const StoredTensor& tensor : test.parameters.stored()) results.push_back(test.gradient(tensor));
    update(test);
  }
  return results;
}

template <class Body>
void for_each_variant(const std::vector<goat::test::ModelVariant>& models, Body body) {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = open_device(name);
    for (const goat::test::ModelVariant& model : models) {
      INFO("device " << name << ", " << name_of(dtype) << ", " << model.name);
      body(*device, dtype, model.settings);
    }
  }
}

double norm(const Values& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

Values difference(Values a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}
}  // namespace

TEST_CASE("model: recomputing gelu or whole blocks gives bitwise the same losses and gradients") {
  for_each_variant(goat::test::blocks_and_attentions(), [](Device& device, DType dtype,
                                                           const Settings& settings) {
    for (const char* epilogue : {"own", "library"}) {
      std::vector<Values> first;
      for (const char* recompute : {"none", "gelu", "block"}) {
        const Settings all = with(settings, {std::string("model.recompute=") + recompute,
                                             std::string("model.epilogue=") + epilogue});
        INFO("recompute " << recompute << ", epilogue " << epilogue);
        const bool llama = std::ranges::find(all, "model.block=llama") != all.end();
        if (!llama && recompute == std::string("gelu") && epilogue == std::string("library")) {
          CHECK_THROWS_AS(tiny_config(all), ConfigError);  // gelu of the rounded projection is another one
          continue;
        }
        const std::vector<Values> results = results_of_steps(tiny_config(all), device, dtype);
        if (first.empty()) first = results;
        CHECK(results == first);
      }
    }
  });
}

TEST_CASE("model: in bf16 the library's epilogue gives other losses than the kernels, by little") {
  for (const std::string& name : goat::test::device_names(DType::bf16)) {
    if (name != "simt") continue;  // cuBLASLt may have no epilogue for shapes this small
    const auto device = open_device(name);
    const auto losses = [&](const char* epilogue) {
      return results_of_steps(tiny_config({std::string("model.epilogue=") + epilogue}), *device, DType::bf16)
          .front();
    };
    const Values own = losses("own"), library = losses("library");
    CHECK(own != library);
    CHECK(norm(difference(own, library)) <= 0.01 * norm(own));
  }
}

TEST_CASE("model: recomputation needs less memory, and block less than gelu") {
  for (const char* block : {"gpt", "llama"}) {
    const auto activations = [&](const char* recompute) {
      const Config config = tiny_config({std::string("model.block=") + block, "model.layers=6",
                                         std::string("model.recompute=") + recompute});
      ParameterSet parameters;
      declare_parameters(config, parameters);
      MemoryPlan memory;
      const Model model(config, open_device("cpu")->info(), {2, config.data.seq_len}, true, parameters,
                        memory);
      return memory.bytes(MemoryCategory::activations);
    };
    INFO("block " << block);
    CHECK(activations("gelu") < activations("none"));
    CHECK(activations("block") < activations("gelu"));
  }
}

TEST_CASE("model: logits in chunks give the losses and the fp32 gradients of logits in one piece") {
  const std::vector<goat::test::ModelVariant> models = {
      {"tied", {}}, {"untied", {"model.block=llama", "model.tied=false"}}};
  for_each_variant(models, [](Device& device, DType dtype, const Settings& settings) {
    // cuBLASLt may add up a row's logits in another order where there are fewer rows, and then bf16 rounds
    // some of them to a neighbour.
    if (device.info().name == "cuda" && dtype == DType::bf16) return;
    const Config config = tiny_config(with(settings, {"data.seq_len=100"}));
    DeviceInfo small = device.info();
    small.chunk_elements = 64 * 64;  // 64 rows of 64 columns: chunks of 64, 64, 64 and 8 tokens
    TestModel whole(config, device, {2, 100}, 7, dtype), chunked(config, device, small, {2, 100}, 7, dtype);
    const std::size_t saved = 136 * 64 * size_of(dtype);
    CHECK(whole.memory.bytes(MemoryCategory::workspace) ==
          chunked.memory.bytes(MemoryCategory::workspace) + saved);
    for (TestModel* test : {&whole, &chunked}) {
      test->parameters.zero_gradients(device);
      test->model->forward_backward(device, 0.005f);
    }
    const auto losses = [&](const TestModel& test) {
      return goat::test::values_of(device, test.model->losses());
    };
    CHECK(norm(difference(losses(chunked), losses(whole))) <= 1e-6 * norm(losses(whole)));
    Values want, errors;
    for (std::size_t i = 0; i < whole.parameters.stored().size(); ++i) {
      want.push_back(norm(whole.gradient(whole.parameters.stored()[i])));
      errors.push_back(norm(difference(chunked.gradient(chunked.parameters.stored()[i]),
                                       whole.gradient(whole.parameters.stored()[i]))));
    }
    CHECK(norm(errors) <= 1e-6 * norm(want));
  });
}
