// Writes JSON files for other programs.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace goat {

// Indented text. Bytes that are not UTF-8 (in a folder's name, or in text cut inside a
// character) become U+FFFD.
std::string json_text(const nlohmann::json& json);
void write_json(const std::filesystem::path& path, const nlohmann::json& json);  // written like FileWriter

}  // namespace goat
