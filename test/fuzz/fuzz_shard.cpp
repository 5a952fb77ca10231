// A file of any bytes is opened as a shard or refused with DataError; sequences of an opened one hold only
// tokens of the vocabulary.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "data/shard_source.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string path = "/dev/shm/goat_fuzz_" + std::to_string(::getpid()) + ".bin";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  constexpr std::int64_t length = 4, vocab = 300;
  try {
    goat::ShardSource source({.pattern = path,
                              .seq_len = length,
                              .bos_block = size % 2 == 0,
                              .bos = 0,
                              .vocab = vocab,
                              .shuffle = size % 3 == 0,
                              .seed = 1});
    std::vector<std::int32_t> inputs(length), targets(length);
    for (std::uint64_t index = 0; index < 3; ++index) {
      source.read(index, inputs, targets);
      for (const std::int32_t token : targets)
        if (token < 0 || token >= vocab) __builtin_trap();
    }
    source.finish_check();
  } catch (const goat::DataError&) {
  }
  return 0;
}
