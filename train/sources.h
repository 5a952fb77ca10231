// The data sources a config asks for.
#pragma once

#include <memory>

#include "data/token_source.h"
#include "train/config.h"

namespace goat {

// Throws DataError where the data cannot be used.
std::unique_ptr<TokenSource> open_training_source(const Config& config);
std::unique_ptr<TokenSource> open_validation_source(const Config& config);  // null where the config has none

}  // namespace goat
