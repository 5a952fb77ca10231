// The whole model in float64, naive and forward only, from the tensors a checkpoint stores (goat.md's
// additive form: no lanes, T x T matrices): gpt and llama blocks, every attention, a tied or an untied head.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "train/config/config.h"
#include "train/memory/parameters.h"

namespace goat::test {

using StoredValues = std::map<std::string, std::vector<double>>;  // name -> row-major values

// Draws the initial weights and adds noise to all of them, so that nothing stands at zero. Returns what is
// then stored.
StoredValues randomize(Device& device, ParameterSet& parameters, std::uint64_t seed);

// Mean loss in nats over the B*T tokens; inputs and targets are [B, T].
double model_loss(const Config& config, const StoredValues& tensors, const std::vector<std::int32_t>& inputs,
                  const std::vector<std::int32_t>& targets);

}  // namespace goat::test
