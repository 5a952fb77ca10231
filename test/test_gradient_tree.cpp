// The gradients of leaves are added in one tree, bit by bit, however they are shared.
#include <cmath>
#include <vector>

#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/operand.h"
#include "train/replicas/gradient_tree.h"

using namespace goat;
using goat::test::Rng;

namespace {

using Floats = std::vector<float>;

// A model of a matrix and a bias: two groups.
struct Gradients {
  ParameterSet parameters;
  MemoryPlan memory;
  GradientTree tree;

  Gradients(Device& device, std::int64_t leaves) : tree(leaves) {
    parameters.declare("matrix", {37, 29}, ParameterRole::matrix, {});
    parameters.declare("bias", {37}, ParameterRole::bias, {});
    parameters.plan(memory, true);
    tree.plan(memory, parameters);
    memory.allocate(device);
    parameters.bind();
  }
};

// The sum of terms first .. end - 1: the largest power of two below their number, then the others.
float tree_sum(const Floats& terms, std::size_t first, std::size_t end) {
  if (end - first == 1) return terms[first];
  std::size_t half = 1;
  while (2 * half < end - first) half *= 2;
  return tree_sum(terms, first, first + half) + tree_sum(terms, first + half, end);
}

// Values of different sizes, so that the order of the additions shows in their rounding.
Floats uneven(Rng& rng, std::size_t count) {
  Floats values(count);
  for (float& value : values)
    value = std::ldexp(static_cast<float>(rng() % 4001) - 2000, static_cast<int>(rng() % 25) - 12);
  return values;
}

std::size_t planned_sets(std::int64_t leaves) {
  const auto device = goat::open_device("cpu");
  const Gradients one(*device, 1), several(*device, leaves);
  return several.memory.bytes(MemoryCategory::gradients) / one.memory.bytes(MemoryCategory::gradients);
}

}  // namespace

TEST_CASE("gradient tree: leaves are added as SumParts adds them all, on every device") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::open_device(name);
    const auto seed = goat::test::fresh_seed();
    Rng rng(seed);
    for (const std::int64_t leaves : {1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16}) {
      INFO("device " << name << ", " << leaves << " leaves, GOAT_TEST_SEED=" << seed);
      const Gradients model(*device, leaves);
      std::vector<std::vector<Floats>> given;  // by leaf and group
      for (std::int64_t leaf = 0; leaf < leaves; ++leaf) {
        auto& groups = given.emplace_back();
        for (const auto& group : model.parameters.groups()) {
          groups.push_back(uneven(rng, static_cast<std::size_t>(group.elements)));
          device->upload(group.grad.data, groups.back().data(), group.grad.bytes());
        }
        if (leaf + 1 < leaves) model.tree.add(*device, model.parameters, leaf);
      }
      for (std::size_t g = 0; g < 2; ++g) {  // in two ranges
        const std::int64_t elements = model.parameters.groups()[g].grad.elements(), first = elements / 3;
        model.tree.finish(*device, model.parameters, g, first, elements - first);
        model.tree.finish(*device, model.parameters, g, 0, first);
      }
      for (std::size_t g = 0; g < 2; ++g) {
        const Tensor& grad = model.parameters.groups()[g].grad;
        Floats got(static_cast<std::size_t>(grad.elements()));
        device->download(got.data(), grad.data, grad.bytes());
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
          Floats terms;
          for (const auto& groups : given) terms.push_back(groups[g][i]);
          wrong += got[i] != tree_sum(terms, 0, terms.size());
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("gradient tree: one leaf needs no memory, 2^k leaves need k sets more") {
  CHECK(planned_sets(1) == 1);
  CHECK(planned_sets(2) == 2);
  CHECK(planned_sets(3) == 3);
  CHECK(planned_sets(4) == 3);
  CHECK(planned_sets(8) == 4);
  CHECK(planned_sets(12) == 5);
}
