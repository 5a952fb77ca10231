// The commit of which this program was built, as git describes it.
#pragma once

namespace goat {

extern const char* const build_commit;  // train/commands/commit.cmake writes it in every build

}  // namespace goat
