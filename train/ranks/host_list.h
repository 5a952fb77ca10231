// Slurm's lists of hosts: node[01-03,7],other
#pragma once

#include <string>
#include <string_view>

namespace goat {

// The first host of a list; of rack[1-2]n[3,5] that is rack1n3. Throws RanksError if the list is not one.
std::string first_host(std::string_view list);

}  // namespace goat
