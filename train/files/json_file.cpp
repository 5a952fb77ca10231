#include "train/files/json_file.h"

#include <nlohmann/json.hpp>

#include "train/files/files.h"

namespace goat {

std::string json_text(const nlohmann::json& json) {
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void write_json(const std::filesystem::path& path, const nlohmann::json& json) {
  write_file_atomically(path, json_text(json));
}

}  // namespace goat
