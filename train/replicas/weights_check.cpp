#include "train/replicas/weights_check.h"

#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace goat {

namespace {
struct Odd {
  std::vector<int> ranks;
  bool certain = true;  // most ranks have another hash in common
};

// The ranks that do not have the most frequent hash, or that of rank 0 if it is as frequent.
Odd odd_ones(const std::vector<std::uint64_t>& hashes) {
  std::map<std::uint64_t, std::size_t> count;
  for (const std::uint64_t hash : hashes) ++count[hash];
  std::uint64_t usual = hashes.front();
  for (const auto& [hash, times] : count)
    if (times > count[usual]) usual = hash;
  Odd odd{.ranks = {}, .certain = 2 * count[usual] > hashes.size()};
  for (std::size_t rank = 0; rank < hashes.size(); ++rank)
    if (hashes[rank] != usual) odd.ranks.push_back(static_cast<int>(rank));
  return odd;
}

std::string named(const std::vector<int>& ranks, const RankGroup& group) {
  std::string text;
  for (const int rank : ranks)
    text += (text.empty() ? "" : ", ") + name_of(group.peers()[static_cast<std::size_t>(rank)]);
  return text;
}
}  // namespace

void WeightsCheck::plan(MemoryPlan& memory, const ParameterSet& parameters) {
  memory.add(MemoryCategory::optimizer, "hashes of the weights", DType::f64, {std::ssize(parameters.all())},
             hashes_);
}

void WeightsCheck::enqueue(Device& device, const ParameterSet& parameters) const {
  device.set_zero(hashes_.data, hashes_.bytes());
  auto* hash = static_cast<std::uint64_t*>(hashes_.data);
  for (const Parameter& parameter : parameters.all())
    device.run(WeightsHash{.hash = hash++, .x = parameter.value, .first_element = 0});
}

void WeightsCheck::compare(Device& device, const ParameterSet& parameters, RankGroup& group,
                           const std::string& when) const {
  if (group.size() == 1) return;
  enqueue(device, parameters);
  std::string own(hashes_.bytes(), '\0');
  device.download(own.data(), hashes_.data, hashes_.bytes());
  const std::vector<std::string> all = group.gather("the hashes of the weights", own);
  std::vector<std::uint64_t> hashes(all.size());
  for (std::size_t i = 0; i < parameters.all().size(); ++i) {
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      std::memcpy(&hashes[rank], all[rank].data() + i * sizeof(std::uint64_t), sizeof(std::uint64_t));
    const Odd odd = odd_ones(hashes);
    if (odd.ranks.empty()) continue;
    throw WeightsDiffer(
        "after " + when + " the ranks have different weights: " + named(odd.ranks, group) + " in " +
        parameters.all()[i].name +
        (odd.certain ? "" : " (or the others are wrong: most ranks have no weights in common)") +
        "; look at the memory and the logs of that machine. Nothing was saved with them");
  }
}

}  // namespace goat
