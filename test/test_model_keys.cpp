// The keys that shape a model beside its block and its attention: kv_heads, bias, norm_eps, qk_norm. What is
// the same model where it should be, and what a checkpoint then holds. That each computes what it should is
// in the tests of all variants (test/model_variants.h).
#include <cmath>
#include <map>

#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/tiny_model.h"
#include "train/model/model_parameters.h"

using namespace goat;
using namespace goat::test::tiny_model;
using goat::test::StoredValues;

namespace {

using Values = std::vector<double>;
using Shapes = std::map<std::string, std::vector<std::int64_t>>;

struct Results {
  double loss;
  StoredValues gradients;
};

// The mean loss and the gradients of a model that holds `values`.
Results results_of(const Config& config, Device& device, const StoredValues& values) {
  const BatchShape shape{2, config.data.seq_len};
  TestModel test(config, device, shape, 7);
  for (const StoredTensor& tensor : test.parameters.stored()) test.write(tensor.name, values.at(tensor.name));
  test.compute_gradients();
  Results results{.loss = test.mean_loss(), .gradients = {}};
  for (const StoredTensor& tensor : test.parameters.stored())
    results.gradients[tensor.name] = test.gradient(tensor);
  return results;
}

StoredValues random_values(const Config& config, Device& device) {
  return TestModel(config, device, {1, 1}, goat::test::fresh_seed()).values;
}

Shapes shapes_of(const Config& config) {
  ParameterSet parameters;
  declare_parameters(config, parameters);
  Shapes shapes;
  for (const StoredTensor& tensor : parameters.stored()) shapes[tensor.name] = tensor.shape;
  return shapes;
}

bool is_shared_by_group(const std::string& name) {
  for (const char* part : {".attn.k.", ".attn.v.", ".bump", ".sink.w2"})
    if (name.find(part) != std::string::npos) return true;
  return false;
}

// Each head's rows `group` times. heads: in `rows`.
Values repeated(const Values& rows, std::size_t heads, std::size_t group) {
  const auto size = static_cast<std::ptrdiff_t>(rows.size() / heads);
  Values all;
  for (std::size_t head = 0; head < heads * group; ++head) {
    const auto first = rows.begin() + static_cast<std::ptrdiff_t>(head / group) * size;
    all.insert(all.end(), first, first + size);
  }
  return all;
}

// The sum over each group's rows.
Values summed(const Values& rows, std::size_t heads, std::size_t group) {
  const std::size_t size = rows.size() / (heads * group);
  Values sums(heads * size);
  for (std::size_t i = 0; i < rows.size(); ++i) sums[i / (size * group) * size + i % size] += rows[i];
  return sums;
}

double norm(const Values& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

}  // namespace

TEST_CASE("kv_heads: a head of keys that heads of queries share is as many equal ones, gradients summed") {
  const std::vector<Settings> models = {
      {},
      {"model.block=llama", "model.attention=goat+rope", "model.qk_norm=true"},
      {"model.attention=alibi"}};
  for (const std::string& name : goat::test::device_names())
    for (const Settings& model : models)
      for (const std::size_t kv_heads : {1, 2}) {
        const auto device = open_device(name);
        const Settings four = with(model, {"model.heads=4", "model.width=48"});
        const Config config = tiny_config(with(four, {"model.kv_heads=" + std::to_string(kv_heads)}));
        INFO("device " << name << ", " << config.model.attention << ", kv_heads " << kv_heads);
        const StoredValues shared = random_values(config, *device);
        StoredValues apart = shared;
        for (auto& [tensor, values] : apart)
          if (is_shared_by_group(tensor)) values = repeated(values, kv_heads, 4 / kv_heads);
        const Results got = results_of(config, *device, shared),
                      want = results_of(tiny_config(four), *device, apart);
        CHECK(got.loss == Approx(want.loss).epsilon(1e-5));
        for (const auto& [tensor, gradient] : got.gradients) {
          INFO(tensor);
          Values difference = is_shared_by_group(tensor)
                                  ? summed(want.gradients.at(tensor), kv_heads, 4 / kv_heads)
                                  : want.gradients.at(tensor);
          for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= gradient[i];
          CHECK(norm(difference) <= 1e-4 * norm(gradient) + 1e-6);
        }
      }
}

TEST_CASE("kv_heads: as many as heads is what 0 means, and a checkpoint holds the rows of fewer") {
  const Config all = tiny_config(), named = tiny_config({"model.kv_heads=2"});
  CHECK(shapes_of(named) == shapes_of(all));
  const Config config = tiny_config({"model.heads=4", "model.width=48", "model.kv_heads=2"});  // d_c = 6
  const Shapes shapes = shapes_of(config);
  const std::string attn = "blocks.1.attn.";
  CHECK(shapes.at(attn + "q.weight") == std::vector<std::int64_t>{24, 48});
  CHECK(shapes.at(attn + "k.weight") == std::vector<std::int64_t>{12, 48});
  CHECK(shapes.at(attn + "k.bias") == std::vector<std::int64_t>{12});
  CHECK(shapes.at(attn + "v.weight") == std::vector<std::int64_t>{24, 48});
  CHECK(shapes.at(attn + "o.weight") == std::vector<std::int64_t>{48, 48});
  CHECK(shapes.at(attn + "prior.alpha") == std::vector<std::int64_t>{4, 2});
  CHECK(shapes.at(attn + "prior.slope") == std::vector<std::int64_t>{4});
  CHECK(shapes.at(attn + "prior.bump") == std::vector<std::int64_t>{2});
  CHECK(shapes.at(attn + "prior.sink.w2").at(0) == 2);
}

TEST_CASE("kv_heads: parameters and FLOPs count the projections as they are") {
  const auto fineweb = [](const Settings& settings) { return load_config("fineweb_1b", settings); };
  const Config full = fineweb({"model.attention=rope"}),
               grouped = fineweb({"model.attention=rope", "model.kv_heads=8"});
  const std::int64_t fewer = 22 * 2 * (32 - 8) * 64 * 2048;  // rows of k and v of 22 layers
  CHECK(count_parameters(grouped).trainable == count_parameters(full).trainable - fewer);
  CHECK(flops_per_token(grouped) == flops_per_token(full) - 6.0 * static_cast<double>(fewer));

  // The prior takes 10 rows from each of 32 heads of q and 8 of k.
  const Config prior = fineweb({"model.kv_heads=8"});
  const ParameterCounts counts = count_parameters(prior);
  CHECK(counts.full_projections == count_parameters(grouped).trainable);
  CHECK(counts.trainable - counts.prior == counts.full_projections - 22 * (32 + 8) * 10 * 2048);
  CHECK(flops_per_token(prior) == flops_per_token(grouped) - 6.0 * 22 * (32 + 8) * 10 * 2048);
}

TEST_CASE("bias: a model without biases is one whose biases are zero, in either block") {
  for (const std::string& name : goat::test::device_names())
    for (const char* block : {"gpt", "llama"}) {
      INFO("device " << name << ", " << block);
      const auto device = open_device(name);
      const Settings settings = {std::string("model.block=") + block};
      const Config without = tiny_config(with(settings, {"model.bias=false"})),
                   biased = tiny_config(with(settings, {"model.bias=true"}));
      const StoredValues values = random_values(without, *device);
      StoredValues zeros = values;
      for (const auto& [tensor, shape] : shapes_of(biased))
        if (!zeros.contains(tensor)) zeros[tensor] = Values(static_cast<std::size_t>(shape.at(0)));
      const Results got = results_of(without, *device, values), want = results_of(biased, *device, zeros);
      CHECK(got.loss == Approx(want.loss).epsilon(1e-6));
      for (const auto& [tensor, gradient] : got.gradients) {
        INFO(tensor);
        Values difference = want.gradients.at(tensor);
        for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= gradient[i];
        CHECK(norm(difference) <= 1e-5 * norm(gradient) + 1e-7);
      }
    }
}

TEST_CASE("bias: auto is what the block has always had; RMSNorm has none in any case") {
  const auto biases = [](const Settings& settings) {
    std::vector<std::string> names;
    for (const auto& [name, shape] : shapes_of(tiny_config(with({"model.attention=none"}, settings))))
      if (name.ends_with(".bias") && !name.starts_with("blocks.1")) names.push_back(name);
    return names;
  };
  const std::vector<std::string> norms = {"blocks.0.norm1.bias", "blocks.0.norm2.bias", "final_norm.bias"};
  CHECK(biases({}).size() == 9);
  for (const std::string& name : norms) CHECK(std::ranges::count(biases({}), name) == 1);
  CHECK(biases({"model.bias=true"}) == biases({}));
  CHECK(biases({"model.bias=false"}).empty());
  CHECK(biases({"model.block=llama"}).empty());
  CHECK(biases({"model.block=llama", "model.bias=true"}) ==
        std::vector<std::string>{"blocks.0.attn.k.bias", "blocks.0.attn.o.bias", "blocks.0.attn.q.bias",
                                 "blocks.0.attn.v.bias", "blocks.0.mlp.down.bias", "blocks.0.mlp.gate.bias",
                                 "blocks.0.mlp.up.bias"});
}

TEST_CASE("qk_norm: the length of q and k is nothing, their norms' weights are, and start at one") {
  const auto device = open_device("cpu");
  const Config config = tiny_config({"model.qk_norm=true", "model.bias=false", "model.norm_eps=1e-12"});
  const StoredValues values = random_values(config, *device);
  const double loss = results_of(config, *device, values).loss;
  const auto loss_with = [&](const std::string& tensor, double factor) {
    StoredValues changed = values;
    for (double& value : changed.at(tensor)) value *= factor;
    return results_of(config, *device, changed).loss;
  };
  for (const char* name : {"q", "k"}) {
    INFO(name);
    const std::string tensor = std::string("blocks.0.attn.") + name;
    CHECK(loss_with(tensor + ".weight", 3) == Approx(loss).epsilon(1e-5));
    CHECK(std::abs(loss_with(tensor + "_norm.weight", 3) - loss) > 1e-4);
  }
  goat::test::tiny_model::TestParameters allocated(config, *device);
  ParameterSet& parameters = allocated.parameters;
  parameters.initialize(*device, 1);
  for (const StoredTensor& tensor : parameters.stored())
    if (tensor.name.ends_with("_norm.weight") && tensor.name.starts_with("blocks"))
      CHECK(parameters.read(*device, tensor) == std::vector<float>(6, 1.0f));  // d_c = 12 - 6 lanes
  CHECK(shapes_of(config).size() == shapes_of(tiny_config({"model.bias=false"})).size() + 2 * 2);
}
