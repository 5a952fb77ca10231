#include "train/files/npy.h"

#include <bit>
#include <stdexcept>
#include <string>

namespace goat {

static_assert(std::endian::native == std::endian::little, "the descriptors below say little-endian");

namespace {
// A shape as a Python tuple: "(3, 4)", "(3,)", "()".
std::string tuple_text(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

std::string npy_header(const char* type, const std::vector<std::int64_t>& shape) {
  constexpr std::size_t preamble = 10, alignment = 64;  // the values start at a multiple of 64 bytes
  std::string text =
      std::string("{'descr': '") + type + "', 'fortran_order': False, 'shape': " + tuple_text(shape) + ", }";
  const std::size_t total = (preamble + text.size() + 1 + alignment - 1) / alignment * alignment;
  text.resize(total - preamble - 1, ' ');
  text += '\n';
  const std::size_t length = text.size();
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(length & 0xff);
  header += static_cast<char>(length >> 8 & 0xff);
  return header + text;
}

constexpr const char* descriptor(float) { return "<f4"; }
constexpr const char* descriptor(double) { return "<f8"; }

template <class T>
void write_array(FileWriter& file, const std::vector<std::int64_t>& shape, const std::vector<T>& values) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  if (elements != static_cast<std::int64_t>(values.size()))
    throw std::invalid_argument("write_npy: " + std::to_string(values.size()) +
                                " values for an array of shape " + tuple_text(shape));
  file.write(npy_header(descriptor(T{}), shape));
  file.write({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

template <class T>
void write_file(const std::filesystem::path& path, const std::vector<std::int64_t>& shape,
                const std::vector<T>& values) {
  FileWriter file(path);
  write_array(file, shape, values);
  file.commit();
}
}  // namespace

void write_npy(FileWriter& file, const std::vector<std::int64_t>& shape, const std::vector<float>& values) {
  write_array(file, shape, values);
}

void write_npy(FileWriter& file, const std::vector<std::int64_t>& shape, const std::vector<double>& values) {
  write_array(file, shape, values);
}

void write_npy(const std::filesystem::path& path, const std::vector<std::int64_t>& shape,
               const std::vector<float>& values) {
  write_file(path, shape, values);
}

void write_npy(const std::filesystem::path& path, const std::vector<std::int64_t>& shape,
               const std::vector<double>& values) {
  write_file(path, shape, values);
}

}  // namespace goat
