#include "train/safetensors.h"

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "train/files.h"

namespace goat {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

void write_safetensors(const std::filesystem::path& path, const std::vector<SafeTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::json header;
  header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const SafeTensor& tensor : tensors) {
    const std::uint64_t end = offset + tensor.values.size() * sizeof(float);
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // tensors start on an 8-byte boundary
  const std::uint64_t length = text.size();
  std::vector<std::string_view> pieces{{reinterpret_cast<const char*>(&length), sizeof length}, text};
  for (const SafeTensor& tensor : tensors) pieces.emplace_back(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
  write_file_atomically(path, pieces);
}

}  // namespace goat
