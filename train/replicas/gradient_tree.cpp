#include "train/replicas/gradient_tree.h"

#include <bit>
#include <string>

namespace goat {

namespace {
// sum += branch
void add_branch(Device& device, const Tensor& sum, const Tensor& branch) {
  Tensor parts = Tensor::contiguous(sum.data, DType::f32, {2, sum.elements()}, "branches");
  parts.stride[0] = branch.as<float>() - sum.as<float>();
  device.run(SumParts{.out = sum, .parts = parts});
}
}  // namespace

void GradientTree::plan(MemoryPlan& memory, const ParameterSet& parameters) {
  branches_.assign(std::bit_width(static_cast<std::uint64_t>(leaves_ - 1)),
                   Branch(parameters.groups().size()));
  for (std::size_t level = 0; level < branches_.size(); ++level)
    for (std::size_t g = 0; g < parameters.groups().size(); ++g)
      memory.add(MemoryCategory::gradients,
                 "gradients of " + std::to_string(std::int64_t{1} << level) + " leaves", DType::f32,
                 {parameters.groups()[g].grad.elements()}, branches_[level][g]);
}

// Bit l of `leaf`: a branch of level l waits. Below the lowest zero bit they are complete with this leaf.
void GradientTree::add(Device& device, const ParameterSet& parameters, std::int64_t leaf) const {
  const auto& groups = parameters.groups();
  for (std::size_t level = 0;; ++level) {
    const bool waits = (leaf >> level & 1) != 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const Tensor &sum = groups[g].grad, &branch = branches_[level][g];
      if (waits)
        add_branch(device, sum, branch);
      else
        device.copy(branch.data, sum.data, sum.bytes());
    }
    if (!waits) return;
  }
}

// The last leaf ends all branches that wait.
void GradientTree::finish(Device& device, const ParameterSet& parameters, std::size_t group,
                          std::int64_t first, std::int64_t elements) const {
  const Tensor sum = parameters.groups()[group].grad.slice(0, first, elements);
  for (std::size_t level = 0; level < branches_.size(); ++level)
    if (((leaves_ - 1) >> level & 1) != 0)
      add_branch(device, sum, branches_[level][group].slice(0, first, elements));
}

}  // namespace goat
