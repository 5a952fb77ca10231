// Parsing JSON that anyone may have written.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace goat {

// Discarded (is_discarded()) if `text` is not JSON, or is nested more than 100 deep: the library writes and
// copies a value recursively, and a deep one would overflow the stack. A NUL is not JSON; the library would
// stop at one.
nlohmann::json parsed_json(const std::string& text);

}  // namespace goat
