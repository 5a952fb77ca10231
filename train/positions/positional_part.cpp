#include "train/positions/positional_part.h"

#include <algorithm>
#include <iterator>

#include "train/positions/absolute_part.h"
#include "train/positions/alibi_part.h"
#include "train/positions/forget_part.h"
#include "train/positions/goat_part.h"
#include "train/positions/rope_part.h"

namespace goat {

namespace {
constexpr PositionalKind kinds[] = {
    {"sinusoidal", nullptr, make_sinusoidal},
    {"learned", nullptr, make_learned_positions, declare_learned_positions},
    {"goat", declare_goat, make_goat},
    {"rope", nullptr, make_rope},
    {"rope_pi", nullptr, make_rope_pi},
    {"alibi", nullptr, make_alibi},
    {"alibi_learned", declare_learned_alibi, make_learned_alibi},
    {"forget", declare_forget, make_forget},
};
}  // namespace

std::vector<PositionalKind> positional_kinds(const Config& config) {
  std::vector<PositionalKind> parts;
  std::ranges::copy_if(kinds, std::back_inserter(parts),
                       [&](const PositionalKind& kind) { return config.has_part(kind.name); });
  return parts;
}

}  // namespace goat
