// A meta.json of any bytes beside a good shard is read, refused with DataError, or taken for a stranger's;
// what the sources then read is in the vocabulary.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "data/crop_source.h"
#include "data/shard_source.h"

namespace {
constexpr std::int64_t vocab = 300, tokens = 24;

std::filesystem::path folder_with_shard() {
  const std::filesystem::path folder = "/dev/shm/goat_fuzz_meta_" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  std::int32_t header[256] = {goat::Shard::uint16_tokens.magic, goat::Shard::uint16_tokens.version, tokens};
  std::uint16_t ids[tokens] = {1, 2, 3};
  std::ofstream file(folder / "train_000000.bin", std::ios::binary);
  file.write(reinterpret_cast<const char*>(header), sizeof header);
  file.write(reinterpret_cast<const char*>(ids), sizeof ids);
  return folder;
}

void read_one(goat::TokenSource& source) {
  std::vector<std::int32_t> inputs(4), targets(4);
  source.read(0, inputs, targets);
  for (const std::int32_t token : targets)
    if (token < 0 || token >= vocab) __builtin_trap();
  (void)source.notes();
  (void)source.shards();
  source.finish_check();
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path folder = folder_with_shard();
  std::ofstream(folder / "meta.json", std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const std::string pattern = folder / "train_000000.bin";
  try {
    goat::ShardSource blocks({.pattern = pattern, .seq_len = 4, .vocab = vocab});
    read_one(blocks);
    goat::CropSource crops({.pattern = pattern, .seq_len = 4, .record_tokens = 8, .vocab = vocab});
    read_one(crops);
  } catch (const goat::DataError&) {
  }
  return 0;
}
