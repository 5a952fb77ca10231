// The text of data.mixture: "WEIGHT GLOB, WEIGHT GLOB, ...".
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"

namespace goat {

struct WeightedPattern {
  double weight = 0;    // positive; only the ratios count
  std::string pattern;  // see ShardFiles
};

// Spaces around an entry do not count; a glob may hold others. A comma in a glob is written as "\,", which
// glob(3) itself reads as a comma. Throws ConfigError for a weight that is not a positive number or is less
// than a millionth of their sum, for a missing glob, and for one that is there twice.
std::vector<WeightedPattern> parse_mixture(const std::string& text);

// The text that parse_mixture reads back as `parts`.
std::string mixture_text(const std::vector<WeightedPattern>& parts);

// The glob patterns of the training shards: data.train, or those of data.mixture. Empty if there are none.
std::vector<std::string> training_patterns(const Config& config);

}  // namespace goat
