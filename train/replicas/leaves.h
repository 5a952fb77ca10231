// Into how many leaves the batch of a run is cut.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"

namespace goat {

// `config` with a number where distributed.leaves is 0: that of the run so far, `before` (0: none), if the
// ranks divide it, else the number of ranks. Throws ConfigError if the batch cannot be cut so, or if the
// ranks cannot share the leaves evenly.
Config with_leaves(Config config, int ranks, std::int64_t before = 0);

// What keeps the sums of such a run from being bitwise those of one rank; nothing if they are.
std::vector<std::string> notes_on_sums(const Config& config, int ranks);

}  // namespace goat
