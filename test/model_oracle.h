// The whole model in float64, naive and forward only, from the tensors a checkpoint stores (goat.md's
// additive form: no lanes, T x T matrices): gpt and llama blocks, every attention, grouped queries, norms of
// q and k, with and without biases, a tied or an untied head.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "train/config/config.h"
#include "train/memory/parameters.h"

namespace goat::test {

using StoredValues = std::map<std::string, std::vector<double>>;  // name -> row-major values

// Adds noise to all weights, so that nothing stands at zero. Returns what is then stored.
StoredValues add_noise(Device& device, const ParameterSet& parameters, std::uint64_t seed);
// The same after drawing the initial weights.
StoredValues randomize(Device& device, ParameterSet& parameters, std::uint64_t seed);

// The loss of each token, in nats; inputs and targets are [B, T]. 0 for a target of -1.
std::vector<double> token_losses(const Config& config, const StoredValues& tensors,
                                 const std::vector<std::int32_t>& inputs,
                                 const std::vector<std::int32_t>& targets);

// Mean loss in nats over the B*T tokens; inputs and targets are [B, T].
double model_loss(const Config& config, const StoredValues& tensors, const std::vector<std::int32_t>& inputs,
                  const std::vector<std::int32_t>& targets);

}  // namespace goat::test
