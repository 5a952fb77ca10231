// ShardScan: what rank 0 has read of the shards serves the other ranks, and they share the background check.
#include "data/shard_scan.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "data/checksum.h"
#include "data/crop_source.h"
#include "data/mixture_source.h"
#include "data/shard_set.h"
#include "data/shard_source.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/shard_files.h"
#include "test/temporary_folder.h"
#include "train/config/config.h"
#include "train/training/sources.h"

namespace goat {
namespace {

namespace fs = std::filesystem;
using namespace test;

// The working folder of the process, while it lives.
class WorkingFolder {
 public:
  explicit WorkingFolder(const fs::path& folder) { fs::current_path(folder); }
  ~WorkingFolder() { fs::current_path(before_); }
  WorkingFolder(const WorkingFolder&) = delete;
  WorkingFolder& operator=(const WorkingFolder&) = delete;

 private:
  fs::path before_ = fs::current_path();
};

// Two folders of shards, a/t_0.bin to a/t_2.bin and b/t_0.bin. meta.json in a/ lists one that is not there.
struct Shards {
  Shards() {
    fs::create_directory(folder.path() / "a");
    fs::create_directory(folder.path() / "b");
    write_shard(folder.file("a/t_0.bin"), counting(70));
    write_shard(folder.file("a/t_1.bin"), counting(33, 70), Shard::uint32_tokens);
    write_shard(folder.file("a/t_2.bin"), {});
    write_shard(folder.file("b/t_0.bin"), counting(7, 103));
    folder.file("a/meta.json",
                R"({"tokenizer": "tokenizer.json", "vocab": 110, "end_of_text": 3, "record_tokens": null,)"
                R"("tokenizer_files": [{"file": "tokenizer/tokenizer.json", "sha256": ")" +
                    std::string(64, 'b') + R"("}], "shards": [{"file": "t_0.bin", "sha256": ")" +
                    sha256_of(folder.file("a/t_0.bin")) + R"("}, {"file": "t_9.bin", "sha256": ")" +
                    std::string(64, 'a') + R"("}]})");
  }
  void remove() const {
    for (const char* name : {"a", "b"}) fs::remove_all(folder.path() / name);
  }
  const TemporaryFolder folder;
};

bool equal(const std::vector<ShardRecord>& a, const std::vector<ShardRecord>& b) {
  return std::ranges::equal(a, b, [](const ShardRecord& x, const ShardRecord& y) {
    return x.name == y.name && x.tokens == y.tokens && x.samples == y.samples && x.sha256 == y.sha256;
  });
}

ShardScan some_scan() {
  ShardScan scan{.working_folder = "/data/\xff", .shards = {}, .metas = {}};
  scan.shards = {{"a/\xfe\n.bin", 2, 70, "0123456789abcdef"}, {"/b/t.bin", 4, 2147483647, "f"}};
  scan.metas["a"] = {.tokenizer = "dna",
                     .vocab = 5,
                     .end_of_text = 0,
                     .record_tokens = 6000,
                     .sha256 = {{"t.bin", std::string(64, 'a')}},
                     .tokenizer_sha256 = ""};
  scan.metas["/b"] = {.tokenizer = "tokenizer.json",
                      .vocab = 128'256,
                      .end_of_text = {},
                      .record_tokens = {},
                      .sha256 = {},
                      .tokenizer_sha256 = std::string(64, 'b')};
  return scan;
}

// As encode() would make it of another value.
std::string sealed(const nlohmann::json& json) {
  std::string bytes;
  nlohmann::json::to_cbor(json, bytes);
  return checksum_of(bytes) + bytes;
}

}  // namespace

TEST_CASE("shard scan: encoded and decoded it is the same, with names of any bytes") {
  const ShardScan scan = some_scan();
  CHECK(decode_shard_scan(encode(scan)) == scan);
  const std::vector<std::string> scans{encode(scan), "", "\xff"};
  CHECK(split_scans(join_scans(scans), 3) == scans);
}

TEST_CASE("shard scan: bytes that are damaged anywhere, or of another message, are refused") {
  const std::string good = encode(some_scan()), joined = join_scans({good, good});
  const auto refused = [](const std::string& bytes) {
    return error_of([&] { decode_shard_scan(bytes); }).find("is damaged") != std::string::npos &&
           error_of([&] { split_scans(bytes, 2); }).find("is damaged") != std::string::npos;
  };
  for (const std::string& whole : {good, joined}) {
    for (std::size_t size = 0; size < whole.size(); ++size) REQUIRE(refused(whole.substr(0, size)));
    for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
      std::string flipped = whole;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
      REQUIRE(refused(flipped));
    }
    CHECK(refused(whole + "\n"));
  }
  check_error([&] { decode_shard_scan(joined); }, {"is damaged", "start the run again"});
  check_error([&] { split_scans(good, 2); }, {"is damaged"});
  check_error([&] { split_scans(joined, 3); }, {"2 sources, expected 3"});
}

TEST_CASE("shard scan: a value that no scan has is refused, though the checksum fits") {
  const auto check_refused = [](const auto& change) {
    ShardScan scan = some_scan();
    change(scan);
    check_error([&] { decode_shard_scan(encode(scan)); }, {"is damaged"});
  };
  check_refused([](ShardScan& scan) { scan.shards.clear(); });
  for (const std::int64_t tokens : {std::int64_t{-1}, std::int64_t{1} << 31})
    check_refused([&](ShardScan& scan) { scan.shards[1].tokens = tokens; });
  for (const std::int64_t bytes : {0, 1, 3, 8})
    check_refused([&](ShardScan& scan) { scan.shards[0].token_bytes = bytes; });
  for (const std::int64_t vocab : {std::int64_t{0}, std::numeric_limits<std::int64_t>::max()})
    check_refused([&](ShardScan& scan) { scan.metas["a"].vocab = vocab; });
  check_refused([](ShardScan& scan) { scan.metas["a"].end_of_text = -1; });
  check_refused([](ShardScan& scan) { scan.metas["a"].record_tokens = 0; });

  const auto json = [] { return nlohmann::json::from_cbor(encode(some_scan()).substr(16)); };
  CHECK(decode_shard_scan(sealed(json())) == some_scan());
  for (const char* key : {"working_folder", "shards", "metas"})
    for (const nlohmann::json& value : std::vector<nlohmann::json>{nullptr, 3, "text", {1, 2}, {{"k", 1}}}) {
      nlohmann::json changed = json();
      if (changed[key].type() == value.type() && value.is_string()) continue;  // any text is a folder
      changed[key] = value;
      CAPTURE(key, value.dump());
      check_error([&] { decode_shard_scan(sealed(changed)); }, {"is damaged"});
      changed.erase(key);
      check_error([&] { decode_shard_scan(sealed(changed)); }, {"is damaged"});
    }
}

TEST_CASE("shard scan: a set made from a scan, in another working folder, is the set that was scanned") {
  const Shards shards;
  const bool relative = GENERATE(true, false);
  const std::string pattern = relative ? "*/t_*.bin" : shards.folder.file("*/t_*.bin");
  const auto options = [&](const std::string& scan) {
    return ShardOptions{.pattern = pattern,
                        .seq_len = 10,
                        .bos_block = true,
                        .bos = 5,
                        .vocab = 110,
                        .shuffle = true,
                        .seed = 8,
                        .scan = scan};
  };
  std::unique_ptr<ShardSource> first;
  std::vector<Sequence> sequences;
  std::vector<ShardRecord> records;
  std::string scan;
  {
    const WorkingFolder here(shards.folder.path());
    first = std::make_unique<ShardSource>(options(""));
    first->finish_check();
    for (std::uint64_t i = 0; i < 20; ++i) sequences.push_back(read(*first, 10, i));
    records = first->shards();
    scan = first->scan();
  }
  REQUIRE(records.size() == 4);
  REQUIRE(first->notes().size() == 2);
  ShardSource other(options(scan));
  CHECK(other.description() == first->description());
  CHECK(other.sequences() == first->sequences());
  CHECK(other.tokenizer() == "tokenizer.json");
  CHECK(other.tokenizer_sha256() == std::string(64, 'b'));
  CHECK(other.notes() == first->notes());
  CHECK(other.scan() == scan);
  CHECK(equal(other.shards(), records));
  for (std::uint64_t i = 0; i < 20; ++i) CHECK(read(other, 10, i) == sequences[i]);
  CHECK(equal(other.shards(), records));
  other.finish_check();
}

TEST_CASE("shard scan: nothing is opened before the first read, and what cannot be opened is named") {
  const Shards shards;
  const std::string pattern = shards.folder.file("*/t_*.bin");
  const auto open = [&](const std::string& scan, int rank) {
    return ShardFiles{.pattern = pattern, .vocab = 110, .scan = scan, .check_rank = rank, .check_size = 5};
  };
  const std::string scan = ShardSet(open("", 0)).scan();
  shards.remove();
  const ShardSet set(open(scan, 4));  // its share of the check is empty
  set.finish_check();
  CHECK(set.tokens() == 110);
  CHECK(set.records().size() == 4);
  CHECK(set.notes().size() == 1);
  Tokens got(5);
  for (int again = 0; again < 2; ++again)
    check_error([&] { set.read(72, got); }, {shards.folder.file("a/t_1.bin"), "No such file", "rank 0 could",
                                             "that all ranks share", "same path"});
  const ShardSet checked(open(scan, 3));
  check_error([&] { checked.finish_check(); }, {shards.folder.file("b/t_0.bin"), "No such file"});
  check_error([&] { checked.read(0, got); }, {shards.folder.file("b/t_0.bin")});
}

TEST_CASE("shard scan: a shard that has changed since rank 0 read it is an error at its first read") {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.bin");
  const Shard::Format format = GENERATE(Shard::uint16_tokens, Shard::uint32_tokens);
  write_shard(path, counting(100), format);
  // No rank's check is the one that finds it.
  const ShardFiles files{.pattern = path, .vocab = 1000, .check_rank = 1, .check_size = 2};
  ShardFiles with_scan = files;
  with_scan.scan = ShardSet(files).scan();
  const ShardSet set(with_scan);
  Tokens got(5);
  const auto check_changed = [&](const std::string& part) {
    for (int again = 0; again < 2; ++again)
      check_error([&] { set.read(20, got); },
                  {path, "has changed since rank 0 read it", "100 tokens", part, "restore it"});
  };
  SECTION("longer") {
    write_shard(path, counting(101), format);
    check_changed("here it has " + std::to_string(1024 + 101 * format.token_bytes));
  }
  SECTION("cut short") {
    fs::resize_file(path, 1030);
    check_changed("here it has 1030");
  }
  SECTION("empty") {
    fs::resize_file(path, 0);
    check_changed("here it has 0");
  }
  SECTION("of the same size, in the other width") {
    if (format.token_bytes == 2)
      write_shard(path, counting(50), Shard::uint32_tokens);
    else
      write_shard(path, counting(200), Shard::uint16_tokens);
    check_changed("another header");
  }
  SECTION("of the same size, with a count that does not fit it") {
    write_shard(path, counting(100), header_of(99, format), format);
    check_changed("another header");
  }
  SECTION("a folder") {
    fs::remove(path);
    fs::create_directory(path);
    check_error([&] { set.read(20, got); }, {path, "is a folder"});
  }
  SECTION("not at all: it is read; what changes later is told as without a scan") {
    set.read(20, got);
    CHECK(got == counting(5, 20));
    write_shard(path, counting(100), header_of(99, format), format);
    fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(1));
    check_error([&] { set.read(20, got); }, {path, "has changed since it was opened"});
    fs::remove(path);
    const std::string error = error_of([&] { set.read(20, got); });
    CHECK_THAT(error, ContainsSubstring("No such file") && !ContainsSubstring("rank 0"));
  }
}

TEST_CASE("shard scan: threads that read a shard for the first time at once read the same") {
  const TemporaryFolder folder;
  write_shard(folder.file("t.bin"), counting(1000));
  const ShardFiles files{.pattern = folder.file("t.bin"), .vocab = 1000};
  ShardFiles with_scan = files;
  with_scan.scan = ShardSet(files).scan();
  for (int round = 0; round < 20; ++round) {
    const ShardSet set(with_scan);
    std::vector<Tokens> got(4, Tokens(1000));
    {
      std::vector<std::jthread> threads;
      for (Tokens& tokens : got) threads.emplace_back([&] { set.read(0, tokens); });
    }
    for (const Tokens& tokens : got) CHECK(tokens == counting(1000));
  }
}

TEST_CASE("shard scan: the ranks' shares of the check cover every shard once") {
  const TemporaryFolder folder;
  constexpr int count = 7;
  const auto name = [&](int i) { return folder.file("t_" + std::to_string(i) + ".bin"); };
  for (int i = 0; i < count; ++i) write_shard(name(i), counting(20));
  const bool scanned = GENERATE(false, true);
  const std::string scan =
      scanned ? ShardSet({.pattern = folder.file("t_*.bin"), .vocab = 20}).scan() : std::string();
  const auto files = [&](int rank, int size) {
    return ShardFiles{
        .pattern = folder.file("t_*.bin"), .vocab = 20, .scan = scan, .check_rank = rank, .check_size = size};
  };
  for (int bad = 0; bad < count; ++bad) {
    Tokens tokens = counting(20);
    tokens[11] = 20;
    write_shard(name(bad), tokens);
    for (const int size : {1, 2, 3, 7, 9}) {
      for (int rank = 0; rank < size; ++rank) {
        INFO("shard " << bad << ", rank " << rank << " of " << size);
        const ShardSet set(files(rank, size));
        const std::string found = error_of([&] { set.finish_check(); });
        if (rank != bad % size) {
          CHECK(found == "(no error)");
          continue;
        }
        CHECK_THAT(found, ContainsSubstring(name(bad)) && ContainsSubstring("token 11 has id 20"));
        Tokens got(1);
        CHECK(error_of([&] { set.read((bad + 1) % count * 20, got); }) == found);  // of another shard
      }
    }
    write_shard(name(bad), counting(20));
  }
  for (const auto& [rank, size] : {std::pair{-1, 2}, {2, 2}, {0, 0}})
    CHECK_THROWS_AS(ShardSet(files(rank, size)), std::invalid_argument);
}

TEST_CASE("shard scan: a shard that differs from its sha256 is found by the rank whose share it is") {
  const TemporaryFolder folder;
  for (const char* name : {"t_0.bin", "t_1.bin"}) write_shard(folder.file(name), counting(20));
  folder.file("meta.json",
              R"({"tokenizer": "bytes", "vocab": 256, "end_of_text": null, "shards": [{"file": "t_1.bin", )"
              R"("sha256": ")" +
                  sha256_of(folder.file("t_1.bin")) + "\"}]}");
  ShardOptions options{.pattern = folder.file("t_*.bin"), .seq_len = 10, .vocab = 256, .check_size = 2};
  options.scan = ShardSource(options).scan();
  write_shard(folder.file("t_1.bin"), counting(20, 1));  // same header and size
  ShardSource(options).finish_check();
  options.check_rank = 1;
  ShardSource found(options);
  check_error([&] { found.finish_check(); }, {folder.file("t_1.bin"), "its sha256 is"});
  check_error([&] { read(found, 10, 0); }, {folder.file("t_1.bin"), "its sha256 is"});
}

TEST_CASE("shard scan: the meta.json beside the shards is held against the model of every rank") {
  const Shards shards;
  ShardFiles files{.pattern = shards.folder.file("*/t_*.bin"), .vocab = 110};
  files.scan = ShardSet(files).scan();
  files.vocab = 1000;
  check_error([&] { ShardSet set(files); }, {"vocabulary 110", "model.vocab = 1000"});
}

TEST_CASE("shard scan: the sources of a config are opened from scans, with the ranks' shares of the check") {
  const TemporaryFolder folder;
  for (const char* name : {"a_0.bin", "a_1.bin", "b.bin"}) write_shard(folder.file(name), counting(120));
  const std::string a = folder.file("a_*.bin"), b = folder.file("b.bin");
  const std::vector<std::vector<std::string>> all_settings{
      {"data.train=" + a}, {"data.mixture=0.7 " + a + ", 0.3 " + b}, {"data.train=" + a, "data.block=crop"}};
  for (const std::vector<std::string>& more : all_settings) {
    std::vector<std::string> settings{"model.vocab=120",   "data.val=" + b, "data.record_tokens=40",
                                      "data.seq_len=16",   "data.bos=3",    "eval.tokens=64",
                                      "data.source=shards"};
    settings.insert(settings.end(), more.begin(), more.end());
    CAPTURE(more);
    const Config config = load_config("copy_mixture", settings);
    const auto training = open_training_source(config), validation = open_validation_source(config);
    const std::string scan = training->scan(), val_scan = validation->scan();
    training->finish_check();
    validation->finish_check();
    for (const std::string path : {"a_0.bin", "a_1.bin", "b.bin"})
      fs::rename(folder.file(path), folder.file("gone_" + path));
    const auto other = open_training_source(config, {.scan = scan, .check_rank = 2, .check_size = 3}),
               other_val =
                   open_validation_source(config, {.scan = val_scan, .check_rank = 1, .check_size = 2});
    other->finish_check();  // none of the shards is this rank's
    other_val->finish_check();
    CHECK(equal(other->shards(), training->shards()));
    for (const std::string path : {"a_0.bin", "a_1.bin", "b.bin"})
      fs::rename(folder.file("gone_" + path), folder.file(path));
    CHECK(other->description() == training->description());
    CHECK(other->shares(1000) == training->shares(1000));
    CHECK(other->scan() == scan);
    CHECK(equal(other_val->shards(), validation->shards()));
    for (std::uint64_t i = 0; i < 50; ++i) {
      CHECK(read(*other, 16, i) == read(*training, 16, i));
      CHECK(read(*other_val, 16, i) == read(*validation, 16, i));
    }
    check_error([&] { open_training_source(config, {.scan = scan.substr(1)}); }, {"is damaged"});
    const bool mixture = !config.data.mixture.empty();
    check_error([&] { open_training_source(config, {.scan = mixture ? val_scan : join_scans({val_scan})}); },
                {"is damaged"});
  }
  CHECK(open_training_source(load_config("copy_mixture", {}))->scan().empty());
}

}  // namespace goat
