// The weights of another model with which a run starts (--init-from).
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/memory/parameters.h"
#include "train/run/newest_checkpoint.h"

namespace goat {

// What a model takes of a checkpoint's tensors, by name.
struct InitialWeights {
  FoundCheckpoint from;
  std::vector<std::string> loaded;   // as a whole
  std::vector<std::string> partly;   // position_embedding.weight of another length: the rows that both have
  std::vector<std::string> started;  // not in the checkpoint: they start as configured
  std::vector<std::string> unused;   // only in the checkpoint
  std::vector<std::string> changed;  // keys of the model that differ: "model.rope_base = 100, which was 50"

  // For people: a line for each kind that there is, such as "18 tensors as a whole".
  std::vector<std::string> lines() const;
  std::string json() const;  // everything, for init_from.json
};

// For the model of `config`, whose parameters are `parameters`. Throws DataError, which names the tensor and
// both shapes, if a tensor of the checkpoint has another shape in the model, or if nothing fits; ConfigError
// if tensors of the same shape would mean something else: other heads, another form of the slope.
InitialWeights match_weights(const FoundCheckpoint& from, const Config& config,
                             const ParameterSet& parameters);

// Writes them over the model's initial weights: this rank's pieces, as ParameterSet::write_pieces() does.
void load_weights(const InitialWeights& weights, Device& device, const ParameterSet& parameters);

}  // namespace goat
