// A whole file of any bytes is opened or refused with DataError; every tensor of an opened one can be read.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "data/data_error.h"
#include "train/files/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path path =
      "/dev/shm/goat_fuzz_" + std::to_string(::getpid()) + ".safetensors";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    goat::SafetensorsReader file(path);
    for (const goat::SafetensorsEntry& entry : file.entries()) {
      std::vector<float> values((entry.end - entry.begin) / sizeof(float));
      file.read(file.find(entry.name, entry.shape), 0, values);
    }
  } catch (const goat::DataError&) {
  }
  return 0;
}
