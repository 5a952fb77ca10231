#include "train/positions/positional_part.h"

#include <stdexcept>

#include "train/positions/goat_part.h"
#include "train/positions/rope_part.h"

namespace goat {

namespace {
constexpr PositionalKind kinds[] = {
    {"goat", declare_goat, make_goat},
    {"rope", nullptr, make_rope},
};
}  // namespace

std::vector<PositionalKind> positional_kinds(const Config& config) {
  if (config.model.attention == "none") return {};
  for (const PositionalKind& kind : kinds)
    if (config.model.attention == kind.name) return {kind};
  throw std::logic_error("model.attention = " + config.model.attention + " has no positional part");
}

}  // namespace goat
