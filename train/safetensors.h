// Writes the safetensors format: u64 header length, JSON header, then the tensors' bytes, little-endian.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace goat {

struct SafeTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

// Written atomically (train/files.h).
void write_safetensors(const std::filesystem::path& path, const std::vector<SafeTensor>& tensors, const std::map<std::string, std::string>& metadata);

}  // namespace goat
