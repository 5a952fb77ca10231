// Speed of the shard reader, with the files in the page cache: opening many shards, reading sequences in the
// order of training, and the background check.
//
//   read_shards --folder /tmp/shards
//       writes the shards there (about 1 GB) if they are not there yet, and measures
//   read_shards --folder data --sets c4
//       measures the set data/c4, which has GPT-2's tokens
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "data/checksum.h"
#include "data/shard_source.h"
#include "train/profile/clock.h"

namespace goat::bench {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t vocab = 50'257;

struct Options {
  std::string folder;
  std::vector<std::string> sets;                    // in the folder; empty: those that are written there
  std::int64_t many = 10'000;                       // number of small shards
  std::int64_t small = 2'000, large = 100'000'000;  // tokens of a small and of a large shard
  std::int64_t length = 2048;                       // tokens of a sequence
};

template <class Id>
void write_shard(const fs::path& path, const Shard::Format& format, std::int64_t tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = format.magic, header[1] = format.version, header[2] = static_cast<std::int32_t>(tokens);
  std::mt19937 draw(static_cast<unsigned>(tokens));
  std::vector<Id> ids(static_cast<std::size_t>(tokens));
  for (Id& id : ids) id = static_cast<Id>(draw() % vocab);
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(header.data()), Shard::header_bytes);
  file.write(reinterpret_cast<const char*>(ids.data()),
             static_cast<std::streamsize>(ids.size() * sizeof(Id)));
  if (!file.good()) throw std::runtime_error("cannot write " + path.string());
}

std::string sha256_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> piece(1 << 20);
  Sha256 digest;
  while (file.read(piece.data(), std::ssize(piece)), file.gcount() > 0)
    digest.add(piece.data(), static_cast<std::size_t>(file.gcount()));
  return digest.finish();
}

// The many small shards in many/, one large one of each width in uint16/ and uint32/, each with its
// meta.json.
void write_sets(const Options& options) {
  const fs::path folder = options.folder;
  if (fs::exists(folder / "done")) return;
  for (const char* set : {"many", "uint16", "uint32"}) {
    fs::create_directories(folder / set);
    std::ofstream meta(folder / set / "meta.json");
    meta << R"({"tokenizer": "random", "vocab": )" << vocab << R"(, "end_of_text": null, "shards": [)";
    const bool is_many = std::string(set) == "many";
    for (std::int64_t i = 0; i < (is_many ? options.many : 1); ++i) {
      const std::string name = "train_" + std::to_string(1'000'000 + i).substr(1) + ".bin";
      const fs::path path = folder / set / name;
      if (std::string(set) == "uint32")
        write_shard<std::uint32_t>(path, Shard::uint32_tokens, options.large);
      else
        write_shard<std::uint16_t>(path, Shard::uint16_tokens, is_many ? options.small : options.large);
      meta << (i ? ", " : "") << R"({"file": ")" << name << R"(", "sha256": ")" << sha256_of(path) << "\"}";
    }
    meta << "]}";
  }
  std::ofstream(folder / "done") << "";
}

std::unique_ptr<ShardSource> open(const Options& options, const std::string& set) {
  return std::make_unique<ShardSource>(ShardOptions{.pattern = options.folder + "/" + set + "/train_*.bin",
                                                    .seq_len = options.length,
                                                    .bos_block = true,
                                                    .bos = 0,
                                                    .vocab = vocab,
                                                    .shuffle = true,
                                                    .seed = 1});
}

std::int64_t bytes_in(const Options& options, const std::string& set) {
  std::int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(options.folder) / set))
    if (entry.path().extension() == ".bin") bytes += static_cast<std::int64_t>(entry.file_size());
  return bytes;
}

// Wall time and CPU time of all threads, in seconds.
struct Times {
  double wall = wall_clock(), cpu = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
};

void print(const std::string& what, const Times& start, double bytes = 0) {
  const Times now;
  const double seconds = now.wall - start.wall, cpu = now.cpu - start.cpu;
  std::printf("| %-56s | %7.3f | %7.3f |", what.c_str(), seconds, cpu);
  if (bytes > 0)
    std::printf(" %6.0f | %6.0f |\n", 1e-6 * bytes / seconds, 1e-6 * bytes / cpu);
  else
    std::printf("      - |      - |\n");
  std::fflush(stdout);
}

// One epoch, dealt to the threads in turn.
void measure_reading(const Options& options, const std::string& set, unsigned threads) {
  const auto source = open(options, set);
  source->finish_check();
  const Times start;
  {
    std::vector<std::jthread> readers;
    for (unsigned t = 0; t < threads; ++t)
      readers.emplace_back([&, t] {
        std::vector<std::int32_t> inputs(static_cast<std::size_t>(options.length)), targets(inputs.size());
        for (std::uint64_t i = t; i < source->sequences(); i += threads) source->read(i, inputs, targets);
      });
  }
  print("one shuffled epoch of " + set + ", " + std::to_string(threads) +
            (threads == 1 ? " thread" : " threads"),
        start, static_cast<double>(bytes_in(options, set)));
}

void measure_opening(const Options& options) {
  for (int round = 0; round < 3; ++round) {
    const Times start;
    const auto source = open(options, "many");
    const Times opened;
    print("opening " + std::to_string(options.many) + " shards", start);
    (void)source->shards();
    print("their records (checksums of samples, for a checkpoint)", opened);
  }
}

void measure(const Options& options) {
  for (const std::string& set : options.sets) {
    const auto source = open(options, set);
    const Times start;
    source->finish_check();
    print("background check of " + set + ", with sha256", start, static_cast<double>(bytes_in(options, set)));
    for (const unsigned threads : {1u, 2u}) measure_reading(options, set, threads);
  }
}

}  // namespace
}  // namespace goat::bench

int main(int argc, char** argv) {
  goat::bench::Options options;
  CLI::App app("Measures the shard reader.");
  app.add_option("--folder", options.folder, "where the shards are, or are written")->required();
  app.add_option("--sets", options.sets, "sets in it to measure (default: random tokens, written there)");
  app.add_option("--length", options.length, "tokens of a sequence");
  CLI11_PARSE(app, argc, argv);
  try {
    const bool written = options.sets.empty();
    if (written) options.sets = {"uint16", "uint32", "many"};
    if (written) goat::bench::write_sets(options);
    std::printf("| what | seconds | CPU seconds | MB/s | MB/s of a core |\n|---|---|---|---|---|\n");
    if (written) goat::bench::measure_opening(options);
    goat::bench::measure(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "read_shards: %s\n", error.what());
    return 1;
  }
}
