#include "train/files/safetensors.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>

#include "data/data_error.h"

namespace goat {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

namespace {

// Number of elements of the shape, or -1 if a dimension is negative or the product needs more than 62 bits.
std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || (extent > 0 && elements > (std::int64_t{1} << 60) / extent)) return -1;
    elements *= extent;
  }
  return elements;
}

SafetensorsEntry parse_entry(const std::string& name, const nlohmann::json& fields,
                             const std::string& origin) {
  const auto refuse = [&](const std::string& what) {
    return DataError(origin + ": tensor '" + name + "': " + what);
  };
  if (!fields.is_object() || !fields.contains("dtype") || !fields.contains("shape") ||
      !fields.contains("data_offsets"))
    throw refuse("needs dtype, shape and data_offsets");
  if (fields["dtype"] != "F32") throw refuse("dtype " + fields["dtype"].dump() + ", expected \"F32\"");
  const auto& shape = fields["shape"];
  const auto& offsets = fields["data_offsets"];
  const auto all_integers = [](const nlohmann::json& list) {
    return list.is_array() && std::ranges::all_of(list, [](const auto& n) { return n.is_number_unsigned(); });
  };
  if (!all_integers(shape) || shape.size() > 8)
    throw refuse("shape " + shape.dump() + " is not a list of at most 8 sizes");
  if (!all_integers(offsets) || offsets.size() != 2)
    throw refuse("data_offsets " + offsets.dump() + " are not two byte positions");
  SafetensorsEntry entry{name, shape.get<std::vector<std::int64_t>>(), offsets[0].get<std::uint64_t>(),
                         offsets[1].get<std::uint64_t>()};
  const std::int64_t elements = elements_of(entry.shape);
  if (elements < 0 || entry.end < entry.begin ||
      entry.end - entry.begin != static_cast<std::uint64_t>(elements) * sizeof(float))
    throw refuse("shape " + shape.dump() + " does not fill bytes " + offsets.dump());
  return entry;
}
}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) { return nlohmann::json(shape).dump(); }

std::string safetensors_header(std::vector<SafetensorsEntry>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  nlohmann::json header;
  header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (SafetensorsEntry& tensor : tensors) {
    tensor.begin = offset;
    offset += static_cast<std::uint64_t>(elements_of(tensor.shape)) * sizeof(float);
    tensor.end = offset;
    header[tensor.name] = {
        {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // tensors start at a multiple of 8 bytes
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                                       const std::string& origin) {
  const nlohmann::json header = nlohmann::json::parse(json, nullptr, false);
  if (!header.is_object() || json.find('\0') != json.npos)  // the library would stop at a NUL
    throw DataError(origin + ": the header is not a JSON object; the file is damaged or no safetensors file");
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, fields] : header.items())
    if (name != "__metadata__") entries.push_back(parse_entry(name, fields, origin));
  std::ranges::sort(entries, [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t position = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != position)
      throw DataError(origin + ": tensor '" + entry.name + "' begins at byte " + std::to_string(entry.begin) +
                      " of the data, expected " + std::to_string(position));
    position = entry.end;
  }
  if (position != data_bytes)
    throw DataError(origin + ": holds " + std::to_string(data_bytes) +
                    " bytes of data where its tensors need " + std::to_string(position) +
                    (data_bytes < position ? "; the file was cut short" : "; trailing bytes"));
  return entries;
}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path)
    : path_(path), file_(path, std::ios::binary) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error || !file_)
    throw DataError(path.string() + ": cannot be read" + (error ? ": " + error.message() : ""));
  std::uint64_t length = 0;
  constexpr std::uint64_t longest_header = 100'000'000;
  if (size < sizeof length || !file_.read(reinterpret_cast<char*>(&length), sizeof length) ||
      length > longest_header || length > size - sizeof length)
    throw DataError(path.string() + ": " + std::to_string(size) + " bytes with a header said to have " +
                    std::to_string(length) + "; the file is damaged or no safetensors file");
  std::string header(static_cast<std::size_t>(length), '\0');
  if (!file_.read(header.data(), static_cast<std::streamsize>(length)))
    throw DataError(path.string() + ": the header cannot be read");
  data_start_ = sizeof length + length;
  entries_ = parse_safetensors_header(header, size - data_start_, path.string());
}

const SafetensorsEntry& SafetensorsReader::find(const std::string& name,
                                                const std::vector<std::int64_t>& shape) const {
  const auto entry = std::ranges::find(entries_, name, &SafetensorsEntry::name);
  if (entry == entries_.end()) throw DataError(path_.string() + ": tensor '" + name + "' is missing");
  if (entry->shape != shape)
    throw DataError(path_.string() + ": tensor '" + name + "' has shape " + shape_text(entry->shape) +
                    ", expected " + shape_text(shape));
  return *entry;
}

void SafetensorsReader::read(const SafetensorsEntry& entry, std::int64_t first, std::span<float> elements) {
  file_.seekg(static_cast<std::streamoff>(data_start_ + entry.begin +
                                          static_cast<std::uint64_t>(first) * sizeof(float)));
  if (!file_.read(reinterpret_cast<char*>(elements.data()),
                  static_cast<std::streamsize>(elements.size_bytes())))
    throw DataError(path_.string() + ": tensor '" + entry.name + "' cannot be read");
}

}  // namespace goat
