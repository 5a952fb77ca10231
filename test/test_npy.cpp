// The .npy writer, byte by byte; test_eval.py loads such files with NumPy.

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "test/catch.h"
#include "train/files/npy.h"

namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct TemporaryFile {
  fs::path path = fs::temp_directory_path() / ("goat_npy_" + std::to_string(::getpid()) + ".npy");
  ~TemporaryFile() { fs::remove(path); }
};

// Checks the preamble and returns the header's text without its padding; `values` receives what follows it.
std::string header_of(const std::string& file, std::string& values) {
  REQUIRE(file.substr(0, 8) == std::string("\x93NUMPY\x01\x00", 8));
  const auto byte = [&](std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(file.at(i)));
  };
  const std::size_t end = 10 + byte(8) + 256 * byte(9);
  CHECK(end % 64 == 0);
  REQUIRE(file.at(end - 1) == '\n');
  values = file.substr(end);
  const std::string padded = file.substr(10, end - 11);
  return padded.substr(0, padded.find_last_not_of(' ') + 1);
}

}  // namespace

TEST_CASE(
    "npy: the file has the header of format 1.0, aligned to 64 bytes, and the values as they lie in memory") {
  const TemporaryFile file;
  std::string bytes;
  const std::vector<float> floats = {1.5f, -2, 3, 4, 5, 6};
  goat::write_npy(file.path, {2, 3}, floats);
  CHECK(header_of(contents(file.path), bytes) ==
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }");
  REQUIRE(bytes.size() == 24);
  CHECK(std::memcmp(bytes.data(), floats.data(), 24) == 0);

  const std::vector<double> doubles = {0.1, 0.2};
  goat::write_npy(file.path, {2}, doubles);
  CHECK(header_of(contents(file.path), bytes) == "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }");
  REQUIRE(bytes.size() == 16);
  CHECK(std::memcmp(bytes.data(), doubles.data(), 16) == 0);

  goat::write_npy(file.path, {}, std::vector<double>{7});
  CHECK(header_of(contents(file.path), bytes) == "{'descr': '<f8', 'fortran_order': False, 'shape': (), }");
  goat::write_npy(file.path, {0, 4}, std::vector<float>{});
  CHECK(header_of(contents(file.path), bytes) ==
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4), }");
  CHECK(bytes.empty());
}

TEST_CASE(
    "npy: values that do not fill the shape, or a folder that is not there, are errors that leave no file") {
  const TemporaryFile file;
  CHECK_THROWS_AS(goat::write_npy(file.path, {2, 3}, std::vector<float>(5)), std::invalid_argument);
  CHECK_FALSE(fs::exists(file.path));
  CHECK_THROWS_AS(goat::write_npy("no/such/folder/x.npy", {1}, std::vector<float>(1)), std::runtime_error);
}
