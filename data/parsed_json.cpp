#include "data/parsed_json.h"

#include <nlohmann/json.hpp>

namespace goat {

nlohmann::json parsed_json(const std::string& text) {
  using Json = nlohmann::json;
  constexpr int deepest = 100;
  struct TooDeep {};
  if (text.find('\0') != std::string::npos) return Json::value_t::discarded;
  try {
    return Json::parse(
        text,
        [](int depth, Json::parse_event_t, const Json&) {
          if (depth > deepest) throw TooDeep();
          return true;
        },
        false);
  } catch (const TooDeep&) {
    return Json::value_t::discarded;
  }
}

}  // namespace goat
