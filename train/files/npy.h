// Writes NumPy's .npy format, version 1.0: magic, header length, a Python dict as text, then the values,
// little-endian and row-major.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "train/files/files.h"

namespace goat {

// `values` are the elements of an array of `shape` ({}: a scalar). Throws std::invalid_argument where their
// number does not fit the shape, std::runtime_error where the file cannot be written.
void write_npy(FileWriter& file, const std::vector<std::int64_t>& shape, const std::vector<float>& values);
void write_npy(FileWriter& file, const std::vector<std::int64_t>& shape, const std::vector<double>& values);
// A file of its own, written as FileWriter does.
void write_npy(const std::filesystem::path& path, const std::vector<std::int64_t>& shape,
               const std::vector<float>& values);
void write_npy(const std::filesystem::path& path, const std::vector<std::int64_t>& shape,
               const std::vector<double>& values);

}  // namespace goat
