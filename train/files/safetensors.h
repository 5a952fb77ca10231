// The safetensors format: u64 header length, JSON header, then the tensors' bytes, little-endian. All tensors
// here are F32.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace goat {

struct SafetensorsEntry {
  std::string name;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // in bytes from the start of the first tensor
};

std::string shape_text(const std::vector<std::int64_t>& shape);  // "[2,3]"

// The first bytes of a file that holds these tensors one after the other: the header and its length. Computes
// begin and end of each entry. The tensors' elements follow, row-major.
std::string safetensors_header(std::vector<SafetensorsEntry>& tensors,
                               const std::map<std::string, std::string>& metadata);

// Checks a header against the `data_bytes` bytes that follow it: valid JSON, F32, sizes and offsets that
// agree, no overlap, no gap, nothing after the last tensor. Throws DataError that begins with `origin` and
// names the tensor.
std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                                       const std::string& origin);

// An open safetensors file.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::filesystem::path& path);  // throws DataError
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  // The entry of a tensor that must exist with this shape. Throws DataError.
  const SafetensorsEntry& find(const std::string& name, const std::vector<std::int64_t>& shape) const;
  // Reads elements first .. first + size - 1 of an entry. Throws DataError.
  void read(const SafetensorsEntry& entry, std::int64_t first, std::span<float> elements);

 private:
  std::filesystem::path path_;
  std::ifstream file_;
  std::uint64_t data_start_ = 0;
  std::vector<SafetensorsEntry> entries_;
};

}  // namespace goat
