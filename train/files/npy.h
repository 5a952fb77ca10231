// Writes NumPy's .npy format, version 1.0: magic, header length, a Python dict as text, then the values,
// little-endian and row-major.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "train/files/files.h"

namespace goat {

// `values` are the elements of an array of `shape` ({} is a scalar), row-major. Throws std::invalid_argument
// if their number does not fit the shape, and std::runtime_error if the file cannot be written.
void write_npy(FileWriter& file, const std::vector<std::int64_t>& shape, const std::vector<float>& values);
void write_npy(FileWriter& file, const std::vector<std::int64_t>& shape, const std::vector<double>& values);
// Writes one file, like FileWriter.
void write_npy(const std::filesystem::path& path, const std::vector<std::int64_t>& shape,
               const std::vector<float>& values);
void write_npy(const std::filesystem::path& path, const std::vector<std::int64_t>& shape,
               const std::vector<double>& values);

}  // namespace goat
