// Whether ranks belong together.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/ranks/wire.h"

namespace goat {

// Why a rank cannot take part beside those that came before it, rank 0 first; nothing if it can. Names both
// ranks, the field, and both values; of a value of several lines the first line that differs, with the
// [section] it stands in.
std::optional<Failure> why_not(const Hello& hello, const std::vector<const Hello*>& before);

// The first difference of two values.
std::string difference(const std::string& here, const std::string& there, const std::string& name_here,
                       const std::string& name_there);

}  // namespace goat
