// JSON files for others to read.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace goat {

// Indented; bytes that are not UTF-8 (of a folder's name, of a text cut inside a character) become U+FFFD.
std::string json_text(const nlohmann::json& json);
void write_json(const std::filesystem::path& path, const nlohmann::json& json);  // as FileWriter writes

}  // namespace goat
