// ShardSet: which shards fit together, the background check with sha256 from meta.json, and many shards.
#include "data/shard_set.h"

#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "data/checksum.h"
#include "data/parallel.h"
#include "data/shard_source.h"
#include "test/catch.h"
#include "test/shard_files.h"
#include "test/temporary_folder.h"

namespace goat {
namespace {

namespace fs = std::filesystem;
using namespace test;

// meta.json as prepare.py writes it, with the given entry of a shard.
std::string meta_text(const std::string& file, const std::string& sha256,
                      const std::string& tokenizer = "bytes", const std::string& vocab = "1000") {
  return R"({"tokenizer": ")" + tokenizer + R"(", "vocab": )" + vocab +
         R"(, "end_of_text": null, "shards": [{"file": ")" + file + R"(", "sha256": ")" + sha256 + R"("}]})";
}

}  // namespace

TEST_CASE("sha256: the digests of FIPS 180-2, in one piece or several") {
  Sha256 empty, abc, pieces;
  CHECK(empty.finish() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  abc.add("abc", 3);
  CHECK(abc.finish() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  pieces.add("abcdbcdecdefdefgefghfghighijhijki", 33);
  pieces.add("jkljklmklmnlmnomnopnopq", 23);
  CHECK(pieces.finish() == "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST_CASE("shard set: shards of both widths are one stream") {
  const TemporaryFolder folder;
  write_shard(folder.file("t_0.bin"), counting(70));
  write_shard(folder.file("t_1.bin"), counting(33, 70), Shard::uint32_tokens);
  write_shard(folder.file("t_2.bin"), counting(7, 103));
  const ShardSet set({.pattern = folder.file("t_*.bin"), .vocab = 110});
  Tokens all(110);
  set.read(0, all);
  CHECK(all == counting(110));
  set.finish_check();
  ShardSource source({.pattern = folder.file("t_*.bin"), .seq_len = 50, .bos_block = false, .vocab = 110});
  CHECK(read(source, 50, 1).targets == counting(50, 51));
}

TEST_CASE("shard set: ids of 32 bits at and above the vocabulary and 2^31 are refused by the id") {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.bin");
  for (const std::int32_t bad : {128'256, 65'536 * 3, std::numeric_limits<std::int32_t>::max(),
                                 std::numeric_limits<std::int32_t>::min(), -1}) {
    Tokens tokens = counting(100, 128'000);
    tokens[41] = bad;
    write_shard(path, tokens, Shard::uint32_tokens);
    const std::string id = "token 41 has id " + std::to_string(static_cast<std::uint32_t>(bad)) + ",";
    const ShardSet set({.pattern = path, .vocab = 128'256});
    check_error([&] { set.finish_check(); }, {path, id, "128256"});
    Tokens got(1);
    check_error([&] { Shard(path, 128'256).read(41, got); }, {path, id});
  }
}

TEST_CASE("shard set: a shard whose sha256 is not that of meta.json is named, with both, by every read") {
  const TemporaryFolder folder;
  const std::string path = folder.file("t_1.bin");
  write_shard(folder.file("t_0.bin"), counting(100));
  const Shard::Format format = GENERATE(Shard::uint16_tokens, Shard::uint32_tokens);
  write_shard(path, counting(100, 100), format);
  const std::string right = sha256_of(path),
                    wrong = "0" + right.substr(1, 62) + (right[63] == '0' ? "1" : "0");
  const auto open = [&] {
    return ShardSource({.pattern = folder.file("t_*.bin"), .seq_len = 10, .vocab = 1000});
  };

  folder.file("meta.json", meta_text("t_1.bin", right));
  open().finish_check();
  folder.file("meta.json", meta_text("t_9.bin", wrong));  // says nothing about these
  open().finish_check();

  const auto check_refused = [&](const std::string& found, const std::string& expected) {
    ShardSource source = open();
    check_error([&] { source.finish_check(); }, {path, found, expected, "copy or prepare it again"});
    check_error([&] { read(source, 10, 0); }, {path, found});
  };
  folder.file("meta.json", meta_text("t_1.bin", wrong));
  check_refused(right, wrong);
  folder.file("meta.json", meta_text("t_1.bin", right));
  Tokens changed = counting(100, 100);
  changed[99] ^= 1;
  write_shard(path, changed, format);
  check_refused(sha256_of(path), right);
  Header header = header_of(100, format);
  header[255] = 1;  // the zeros at the header's end count too
  write_shard(path, counting(100, 100), header, format);
  check_refused(sha256_of(path), right);
}

TEST_CASE("shard set: shards of one tokenizer with different vocabularies are not mixed") {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b"}) {
    fs::create_directory(folder.path() / name);
    write_shard(folder.file(std::string(name) + "/t.bin"), counting(100));
  }
  const auto open = [&] { return ShardSet({.pattern = folder.file("*/t.bin"), .vocab = 1000}); };
  folder.file("a/meta.json", meta_text("x", std::string(64, '0'), "bpe", "1000"));
  folder.file("b/meta.json", meta_text("x", std::string(64, '0'), "bpe", "999"));
  check_error(open,
              {"different tokenizers", "bpe of 1000", "bpe of 999", folder.file("a"), folder.file("b")});
  folder.file("b/meta.json", meta_text("x", std::string(64, '0'), "other", "1000"));
  check_error(open, {"different tokenizers", "other"});
  folder.file("b/meta.json", meta_text("x", std::string(64, '0'), "bpe", "1000"));
  CHECK(error_of(open) == "(no error)");
  const auto with_tokenizer = [&](const char* name, const char* tokenizer, char digit) {
    std::string text = meta_text("x", std::string(64, '0'), tokenizer, "1000");
    const std::string files = R"(, "tokenizer_files": [{"file": "tokenizer/tokenizer.json", "sha256": ")";
    text.insert(text.size() - 1, files + std::string(64, digit) + "\"}]");
    folder.file(std::string(name) + "/meta.json", text);
  };
  with_tokenizer("a", "tokenizer.json", 'a');
  with_tokenizer("b", "tokenizer.json", 'b');
  check_error(open, {"different tokenizers", std::string(64, 'a'), std::string(64, 'b')});
  with_tokenizer("b", "tokenizer.json", 'a');
  CHECK(open().tokenizer_sha256() == std::string(64, 'a'));
  with_tokenizer("a", "gpt2", 'a');  // its files have several spellings
  with_tokenizer("b", "gpt2", 'b');
  CHECK(open().tokenizer_sha256().empty());
}

TEST_CASE(
    "shard meta: what prepare.py did not write is no description; what it wrote and is damaged, an error") {
  const TemporaryFolder folder;
  const auto read_back = [&](const std::string& text) {
    folder.file("meta.json", text);
    return read_shard_meta(folder.path());
  };
  const std::string digits(64, 'a'), shard = R"({"file": "t.bin", "sha256": ")" + digits + R"("})";
  const std::string good = R"({"tokenizer": "dna", "vocab": 5, "end_of_text": 4, "record_tokens": 6000, )"
                           R"("shards": [)" +
                           shard + "]}";
  const auto meta = read_back(good);
  REQUIRE(meta);
  CHECK((meta->tokenizer == "dna" && meta->vocab == 5 && meta->end_of_text == 4 &&
         meta->record_tokens == 6000 && meta->sha256.at("t.bin") == digits));
  const auto with = [&](const std::string& old, const std::string& changed) {
    std::string text = good;
    return text.replace(text.find(old), old.size(), changed);
  };
  const std::vector<std::pair<std::string, std::string>> damages{
      {"5", "5.5"},
      {"5", "1e300"},
      {"5", "\"5\""},
      {"5", "null"},
      {"5", "0"},
      {"5", "-5"},
      {"5", "18446744073709551615"},
      {"5", "9223372036854775807"},
      {"6000", "6e3"},
      {"6000", "[6000]"},
      {"6000", "0"},
      {"4", "true"},
      {"4", "5"},
      {"4", "-1"},
      {shard, "3"},
      {"[" + shard + "]", "{}"},
      {"t.bin\"", "t.bin\", \"sha256\": null, \"x\": \""},
      {digits, "A" + digits.substr(1)},
      {digits, digits.substr(1)},
      {"\"dna\"", "3"},
      {"dna", ""},
      {"dna", "\\u001b[31m"},
      {"dna", std::string(101, 'x')},
      {"}", ""},
      {good, ""},
      {good, good + "}"}};
  for (const auto& [old, changed] : damages) {
    CAPTURE(old, changed);
    const std::string text = with(old, changed);
    check_error([&] { read_back(text); }, {folder.file("meta.json"), "describes the shards", "remove it"});
  }
  CHECK(error_of([&] { read_back(with("dna", "\\u001b[31m")); }).find('\x1b') == std::string::npos);
  for (const char* key : {"tokenizer", "vocab", "end_of_text", "shards"})
    CHECK_FALSE(read_back(with(key, "another")));
  CHECK_FALSE(read_back("[]"));
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  check_error([&] { read_back(with("\"dna\"", deep)); }, {"is not JSON"});
  fs::remove(folder.file("meta.json"));
  CHECK_FALSE(read_shard_meta(folder.path()));
  fs::create_directory(folder.file("meta.json"));
  CHECK_FALSE(read_shard_meta(folder.path()));
  fs::remove(folder.file("meta.json"));
  REQUIRE(::mkfifo(folder.file("meta.json").c_str(), 0600) ==
          0);  // nobody writes: reading would wait for ever
  CHECK_FALSE(read_shard_meta(folder.path()));
}

TEST_CASE("shard set: shards that meta.json lists, the pattern asks for and are not there are told") {
  const TemporaryFolder folder;
  write_shard(folder.file("t_1.bin"), counting(100));
  std::string text = meta_text("t_2.bin", std::string(64, '0'));
  const auto notes = [&](const std::string& pattern, const std::vector<std::string>& files = {}) {
    folder.file("meta.json", text);
    return ShardSet({.pattern = folder.file(pattern), .vocab = 1000, .files = files}).notes();
  };
  REQUIRE(notes("t_*.bin").size() == 1);
  CHECK_THAT(notes("t_*.bin")[0], ContainsSubstring(folder.file("t_2.bin") + "' is missing"));
  CHECK(notes("t_1*").empty());
  CHECK(notes("t_*.bin", {folder.file("t_1.bin")}).empty());
  text.insert(text.find("{\"file\""), R"({"file": "t_3.bin", "sha256": ")" + std::string(64, '0') + "\"}, ");
  CHECK_THAT(notes("t_*.bin").at(0), ContainsSubstring("t_2.bin' and 1 more are missing"));
  write_shard(folder.file("t_2.bin"), counting(100));
  write_shard(folder.file("t_3.bin"), counting(100));
  CHECK(notes("t_*.bin").empty());
}

TEST_CASE("shard set: of many shards the first bad one in the order of names is told, every time") {
  const TemporaryFolder folder;
  const auto name = [&](int i) { return folder.file("t_" + std::to_string(1000 + i) + ".bin"); };
  for (int i = 0; i < 400; ++i) write_shard(name(i), {i});
  const ShardSet set({.pattern = folder.file("t_*.bin"), .vocab = 1000});
  Tokens all(400);
  set.read(0, all);
  CHECK(all == counting(400));
  const std::vector<ShardRecord> records = set.records();
  for (std::size_t i = 0; i < 400; ++i) {
    CHECK(records[i].name == fs::path(name(static_cast<int>(i))).filename());
    CHECK(records[i].samples == set.shards()[i].samples_checksum());
  }
  for (const int bad : {399, 231, 230, 101}) {
    fs::resize_file(name(bad), 1025);
    for (int round = 0; round < 10; ++round)
      check_error([&] { ShardSet({.pattern = folder.file("t_*.bin"), .vocab = 1000}); }, {name(bad)});
  }
}

TEST_CASE(
    "for each in parallel: each item once, and the error of the first that fails though a later one is "
    "faster") {
  std::vector<std::atomic<int>> calls(1000);
  for_each_in_parallel(calls.size(), [&](std::size_t i) { ++calls[i]; });
  for (const auto& count : calls) CHECK(count == 1);
  for_each_in_parallel(0, [](std::size_t) { throw DataError("called"); });
  for (int round = 0; round < 20; ++round)
    CHECK_THROWS_WITH(for_each_in_parallel(1000,
                                           [](std::size_t i) {
                                             if (i == 7)
                                               std::this_thread::sleep_for(std::chrono::milliseconds(2));
                                             if (i >= 7) throw DataError("item " + std::to_string(i));
                                           }),
                      "item 7");
}

TEST_CASE("shard set: a set ends at once though its check still runs") {
  const TemporaryFolder folder;
  const std::string path = folder.file("large.bin");
  const std::int64_t count = std::numeric_limits<std::int32_t>::max();
  write_shard(path, {}, header_of(count, Shard::uint32_tokens));
  std::error_code no_room;
  fs::resize_file(path, static_cast<std::uintmax_t>(Shard::header_bytes + 4 * count),
                  no_room);  // sparse, 8 GiB
  if (no_room) return;
  auto set = std::make_optional<ShardSet>(ShardFiles{.pattern = path, .vocab = 10});
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the check begins, and takes seconds
  const auto start = std::chrono::steady_clock::now();
  set.reset();
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
}

}  // namespace goat
