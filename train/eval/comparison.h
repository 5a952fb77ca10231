// The table that compares several evaluations.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace goat {

// A table for each protocol and for each retrieval task, with a row for each of its evaluations and a column
// for each length: perplexities, or the share of the answers' tokens that are right, as a mean over depths.
// "-" stands where an evaluation lacks the length. A table wider than 100 columns is continued below.
// `evaluations` are what the JSON file holds of each; names[i] is the name of the run of evaluations[i].
std::string comparison_text(const std::vector<std::string>& names,
                            const std::vector<nlohmann::json>& evaluations);

}  // namespace goat
