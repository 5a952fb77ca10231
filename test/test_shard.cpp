#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "data/shard.h"
#include "data/shard_source.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/shard_files.h"
#include "test/temporary_folder.h"

namespace goat {
namespace {

namespace fs = std::filesystem;
using namespace test;

constexpr std::int64_t vocab = 60'000;

}  // namespace

TEST_CASE("shard: reads back what was written, at any offset and in both widths") {
  const goat::test::TemporaryFolder folder;
  const Shard::Format format = GENERATE(Shard::uint16_tokens, Shard::uint32_tokens);
  const Tokens tokens = counting(1000, format.token_bytes == 2 ? 17 : 128'000);
  write_shard(folder.file("a.bin"), tokens, format);
  const Shard shard(folder.file("a.bin"), 129'000);
  CHECK(shard.tokens() == 1000);
  for (const std::int64_t first : {0, 1, 500, 999, 1000}) {
    for (const std::int64_t count : {0, 1, 2, 499, 1000}) {
      Tokens got(static_cast<std::size_t>(count));
      if (first + count > 1000) {
        CHECK_THROWS_AS(shard.read(first, got), std::out_of_range);
        continue;
      }
      shard.read(first, got);
      CHECK(std::equal(got.begin(), got.end(), tokens.begin() + first));
    }
  }
  Tokens one(1);
  CHECK_THROWS_AS(shard.read(-1, one), std::out_of_range);
}

TEST_CASE("shard: files that are no valid shard are refused by name, with what was expected and found") {
  const goat::test::TemporaryFolder folder;
  const std::string path = folder.file("bad.bin");
  const Tokens tokens = counting(10);
  const auto open = [&] { Shard(path, vocab); };
  SECTION("missing") { check_error(open, {path, "No such file"}); }
  SECTION("unreadable") {
    write_shard(path, tokens);
    fs::permissions(path, fs::perms::none);
    if (::geteuid() != 0) check_error(open, {path, "Permission denied"});
  }
  SECTION("folder") {
    fs::create_directory(path);
    check_error(open, {path, "is a folder"});
  }
  SECTION("not a regular file") {
    check_error([] { Shard("/dev/null", vocab); }, {"/dev/null", "not a regular file"});
  }
  SECTION("empty") {
    write_bytes(path, "", 0);
    check_error(open, {path, "is empty"});
  }
  SECTION("shorter than its header") {
    write_bytes(path, header_of(0).data(), 1023);
    check_error(open, {path, "1023 bytes", "1024"});
  }
  SECTION("wrong magic number") {
    Header header = header_of(10);
    header[0] = 20240802;
    write_shard(path, tokens, header);
    check_error(open, {path, "20240802", "expected 20240520", "or 20240801"});
  }
  SECTION("wrong version") {
    Header header = header_of(10);
    header[1] = 7;
    write_shard(path, tokens, header);
    check_error(open, {path, "version 7", "expected 1"});
    header = header_of(10, Shard::uint32_tokens);
    header[1] = 1;
    write_shard(path, tokens, header, Shard::uint32_tokens);
    check_error(open, {path, "version 1", "expected 7", "uint32"});
  }
  SECTION("negative count") {
    write_shard(path, tokens, header_of(-10));
    check_error(open, {path, "negative token count -10"});
  }
  SECTION("absurd count") {
    write_shard(path, tokens, header_of(std::numeric_limits<std::int32_t>::max()));
    check_error(open, {path, "2147483647 tokens", "4294968318 bytes", "1044", "cut short"});
  }
  SECTION("more bytes than the count says") {
    write_shard(path, tokens, header_of(9));
    check_error(open, {path, "9 tokens", "1042 bytes", "1044", "trailing"});
  }
  SECTION("half a token missing") {
    write_shard(path, tokens);
    fs::resize_file(path, 1043);
    check_error(open, {path, "1044 bytes", "1043"});
  }
  SECTION("the tokens of the other width") {
    write_shard(path, tokens, header_of(10, Shard::uint32_tokens));
    check_error(open, {path, "10 tokens of 4 bytes", "1064 bytes", "1044", "cut short"});
    write_shard(path, tokens, header_of(10), Shard::uint32_tokens);
    check_error(open, {path, "10 tokens of 2 bytes", "1044 bytes", "1064", "trailing"});
  }
  SECTION("a quarter of a wide token missing") {
    write_shard(path, tokens, Shard::uint32_tokens);
    fs::resize_file(path, 1063);
    check_error(open, {path, "1064 bytes", "1063", "cut short"});
  }
  SECTION("more wide tokens than the count says") {
    write_shard(path, tokens, header_of(9, Shard::uint32_tokens), Shard::uint32_tokens);
    check_error(open, {path, "9 tokens", "1060 bytes", "1064", "trailing"});
  }
}

TEST_CASE("shard: random damage to a header is refused or harmless") {
  const std::uint64_t seed = test::fresh_seed();
  INFO("seed " << seed);
  test::Rng rng(seed);
  const goat::test::TemporaryFolder folder;
  const std::string path = folder.file("a.bin");
  for (int round = 0; round < 300; ++round) {
    Header header = header_of(10);
    auto* bytes = reinterpret_cast<unsigned char*>(header.data());
    for (std::uint64_t flips = 1 + rng() % 3; flips > 0; --flips)
      bytes[rng() % 16] ^= static_cast<unsigned char>(1u << rng() % 8);
    write_shard(path, counting(10), header);
    if (rng() % 4 == 0) fs::resize_file(path, rng() % 1060);
    const std::string message = error_of([&] {
      const std::int64_t tokens = Shard(path, vocab).tokens();
      REQUIRE(tokens == 10);
    });
    INFO(message);
    CHECK((message == "(no error)" || message.find(path) != std::string::npos));
  }
}

TEST_CASE("shard: the largest count (4 GiB, 8 GiB) is read with 64-bit offsets") {
  const goat::test::TemporaryFolder folder;
  const Shard::Format format = GENERATE(Shard::uint16_tokens, Shard::uint32_tokens);
  INFO("width " << format.token_bytes);
  const std::string path = folder.file("large.bin");
  const std::int64_t count = std::numeric_limits<std::int32_t>::max();
  const auto offset = [&](std::int64_t token) { return Shard::header_bytes + format.token_bytes * token; };
  write_shard(path, {}, header_of(count, format));
  try {
    fs::resize_file(path, static_cast<std::uintmax_t>(offset(count)));  // sparse
  } catch (const fs::filesystem_error& error) {
    WARN("no room for a sparse file of " << offset(count) << " bytes: " << error.what());
    return;
  }
  // Just above 2 GiB in each width, and the last one.
  for (const std::int64_t token : {std::int64_t{1} << 29, std::int64_t{1} << 30, count - 1}) {
    std::ofstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(offset(token));
    const std::int32_t id = 11;
    file.write(reinterpret_cast<const char*>(&id), format.token_bytes);
    REQUIRE(file.good());
  }
  const Shard shard(path, vocab);
  CHECK(shard.tokens() == count);
  Tokens got(3);
  shard.read(count - 3, got);
  CHECK(got == Tokens{0, 0, 11});
  for (const std::int64_t token : {std::int64_t{1} << 29, std::int64_t{1} << 30}) {
    shard.read(token - 1, got);
    CHECK(got == Tokens{0, 11, 0});
  }

  ShardSource source({.pattern = path, .seq_len = 1024, .bos_block = true, .bos = 1, .vocab = vocab});
  CHECK(source.sequences() == static_cast<std::uint64_t>(count) / 1024);
  CHECK(read(source, 1024, std::uint64_t{1} << 20).targets[0] == 11);
}

TEST_CASE("shard source: a token id outside the vocabulary names shard and index, wherever it is") {
  const goat::test::TemporaryFolder folder;
  write_shard(folder.file("t_0.bin"), counting(100));
  Tokens tokens = counting(100);
  tokens[70] = 200;  // the first id too large
  write_shard(folder.file("t_1.bin"), tokens);
  const std::initializer_list<std::string> expected = {folder.file("t_1.bin"), "token 70 ", "id 200", "200"};

  ShardSource source(
      {.pattern = folder.file("t_*.bin"), .seq_len = 10, .bos_block = true, .bos = 1, .vocab = 200});
  check_error([&] { source.finish_check(); }, expected);
  check_error([&] { read(source, 10, 0); }, expected);  // found by the check: every read fails
  for (int i = 0; i < 20; ++i) {  // before the check is done: the read of that block fails
    ShardSource fresh(
        {.pattern = folder.file("t_*.bin"), .seq_len = 10, .bos_block = true, .bos = 1, .vocab = 200});
    check_error([&] { read(fresh, 10, 17); }, expected);
  }
  ShardSource wider(
      {.pattern = folder.file("t_*.bin"), .seq_len = 10, .bos_block = true, .bos = 1, .vocab = 201});
  wider.finish_check();
  CHECK(read(wider, 10, 17).targets[0] == 200);
}

TEST_CASE("shard source: a shard that changes during training is an error at the next read, not a crash") {
  const goat::test::TemporaryFolder folder;
  const std::string path = folder.file("t.bin");
  write_shard(path, counting(1000));
  ShardSource source({.pattern = path, .seq_len = 100, .bos_block = true, .bos = 1, .vocab = vocab});
  source.finish_check();
  CHECK(read(source, 100, 9).targets[99] == 999);
  SECTION("cut short") {
    fs::resize_file(path, 1500);
    check_error([&] { read(source, 100, 9); }, {path, "has changed", "3024", "1500"});
  }
  SECTION("emptied") {
    fs::resize_file(path, 0);
    check_error([&] { read(source, 100, 0); }, {path, "has changed"});
  }
  SECTION("rewritten with the same length") {
    write_shard(path, counting(1000, 1));
    fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(1));
    check_error([&] { read(source, 100, 0); }, {path, "has changed"});
  }
  SECTION("replaced, with the time of modification kept") {
    const auto modified = fs::last_write_time(path);
    write_shard(folder.file("new"), counting(1000, 1));
    fs::last_write_time(folder.file("new"), modified);
    fs::rename(folder.file("new"), path);
    check_error([&] { read(source, 100, 0); }, {path, "has changed"});
  }
  SECTION("removed") {
    fs::remove(path);
    check_error([&] { read(source, 100, 0); }, {path, "No such file"});
  }
}

TEST_CASE(
    "shard source: blocks in order are cut from the stream as documented, across shards of any length") {
  const goat::test::TemporaryFolder folder;
  const int total = 103;
  const std::vector<int> cuts = {0,  3,  3,  4,
                                 41, 80, 103};  // an empty shard, one of a single token, several longer ones
  for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
    write_shard(folder.file("t_" + std::to_string(s) + ".bin"),
                counting(static_cast<std::size_t>(cuts[s + 1] - cuts[s]), cuts[s]));
  }
  for (const bool bos : {true, false}) {
    for (const int length : {1, 2, 7, 34, 51, 102}) {
      INFO((bos ? "bos" : "window") << " T " << length);
      ShardSource source({.pattern = folder.file("t_*.bin"),
                          .seq_len = length,
                          .bos_block = bos,
                          .bos = 999,
                          .vocab = vocab});
      CHECK(source.tokens() == total);
      const int blocks = (bos ? total : total - 1) / length;
      REQUIRE(source.sequences() == static_cast<std::uint64_t>(blocks));
      for (int index = 0; index < 2 * blocks + 1; ++index) {
        const Sequence got =
            read(source, static_cast<std::size_t>(length), static_cast<std::uint64_t>(index));
        std::vector<std::int32_t> block(static_cast<std::size_t>(length) + 1);
        std::iota(block.begin(), block.end(), index % blocks * length - (bos ? 1 : 0));
        if (bos) block[0] = 999;
        CHECK(got.inputs == std::vector<std::int32_t>(block.begin(), block.end() - 1));
        CHECK(got.targets == std::vector<std::int32_t>(block.begin() + 1, block.end()));
      }
    }
  }
}

// The order of a run's training data must stay as it is: a resumed run continues in it.
TEST_CASE("shard source: the order of sequences is the one it has always been") {
  const goat::test::TemporaryFolder folder;
  write_shard(folder.file("t_0.bin"), counting(400));
  write_shard(folder.file("t_1.bin"), counting(613, 400));
  const std::vector<std::uint64_t> indices = {0,  1,  2,  3,   30,   61,          62,
                                              63, 64, 65, 200, 1000, 123'456'789, std::uint64_t{1} << 40};
  const auto first_targets = [&](bool bos, bool shuffle) {
    ShardSource source({.pattern = folder.file("t_*.bin"),
                        .seq_len = 16,
                        .bos_block = bos,
                        .bos = 2000,
                        .vocab = vocab,
                        .shuffle = shuffle,
                        .seed = 1'234'567'890'123});
    CHECK(source.sequences() == (shuffle ? 62 : 63));
    Tokens targets;
    for (const std::uint64_t index : indices) targets.push_back(read(source, 16, index).targets[0]);
    return targets;
  };
  CHECK(first_targets(true, true) == Tokens{66, 946, 194, 146, 34, 514, 204, 524, 12, 972, 907, 4, 605, 680});
  CHECK(first_targets(false, true) ==
        Tokens{67, 947, 195, 147, 35, 515, 205, 525, 13, 973, 908, 5, 606, 681});
  CHECK(first_targets(true, false) == Tokens{0, 16, 32, 48, 480, 976, 992, 0, 16, 32, 176, 880, 576, 256});
  CHECK(first_targets(false, false) == Tokens{1, 17, 33, 49, 481, 977, 993, 1, 17, 33, 177, 881, 577, 257});
}

TEST_CASE("shard source: a shuffled epoch reads each block once, and epochs differ in order and shift") {
  const std::uint64_t seed = test::fresh_seed();
  INFO("seed " << seed);
  const goat::test::TemporaryFolder folder;
  write_shard(folder.file("t_0.bin"), counting(400));
  write_shard(folder.file("t_1.bin"), counting(610, 400));
  for (const bool bos : {true, false}) {
    ShardOptions options{.pattern = folder.file("t_*.bin"),
                         .seq_len = 20,
                         .bos_block = bos,
                         .bos = 2000,
                         .vocab = vocab,
                         .shuffle = true,
                         .seed = seed};
    ShardSource source(options);
    const std::uint64_t blocks = source.sequences();
    REQUIRE(blocks == (bos ? 991 / 20 : 990 / 20));
    std::set<int> shifts;
    std::set<std::vector<int>> orders;
    for (std::uint64_t epoch = 0; epoch < 40; ++epoch) {
      std::vector<int> starts;  // stream position of each block's first target
      for (std::uint64_t i = 0; i < blocks; ++i) {
        const Sequence got = read(source, 20, epoch * blocks + i);
        for (std::size_t t = 1; t < 20; ++t) REQUIRE(got.targets[t] == got.targets[0] + static_cast<int>(t));
        REQUIRE(std::equal(got.targets.begin(), got.targets.end() - 1, got.inputs.begin() + 1));
        REQUIRE(got.inputs[0] == (bos ? 2000 : got.targets[0] - 1));
        starts.push_back(got.targets[0]);
      }
      orders.insert(starts);
      std::sort(starts.begin(), starts.end());
      const int shift = starts[0] - (bos ? 0 : 1);
      CHECK(shift >= 0);
      CHECK(shift < 20);
      shifts.insert(shift);
      for (std::size_t b = 0; b < blocks; ++b) REQUIRE(starts[b] == starts[0] + 20 * static_cast<int>(b));
    }
    CHECK(orders.size() == 40);
    CHECK(shifts.size() > 8);  // of 20 possible ones in 40 draws: fewer than 9 has probability below 1e-9

    ShardSource again(options);
    CHECK(read(again, 20, 77).targets == read(source, 20, 77).targets);
    options.seed += 1;
    ShardSource other(options);
    int same = 0;
    for (std::uint64_t i = 0; i < blocks; ++i)
      same += read(other, 20, i).targets == read(source, 20, i).targets;
    CHECK(same < 20);
  }
}

TEST_CASE("shard source: a set just long enough is used, one token less is an error that says so") {
  const goat::test::TemporaryFolder folder;
  write_shard(folder.file("t.bin"), counting(16));
  for (const bool bos : {true, false}) {
    for (const bool shuffle : {false, true}) {
      ShardOptions options{.pattern = folder.file("t.bin"),
                           .seq_len = bos ? 16 : 15,
                           .bos_block = bos,
                           .bos = 0,
                           .vocab = 16,
                           .shuffle = shuffle};
      ShardSource source(options);
      CHECK(source.sequences() == 1);
      for (std::uint64_t index = 0; index < 5; ++index)
        CHECK(read(source, static_cast<std::size_t>(options.seq_len), index).targets.back() == 15);
      options.seq_len += 1;
      check_error([&] { ShardSource too_long(options); },
                  {options.pattern, "16 tokens", std::to_string(options.seq_len), "seq_len"});
    }
  }
  write_shard(folder.file("empty.bin"), {});
  check_error([&] { ShardSource({.pattern = folder.file("empty.bin"), .seq_len = 1, .vocab = 16}); },
              {"0 tokens"});
}

TEST_CASE("shard source: a short shuffled set keeps one block and shifts it within the set") {
  const goat::test::TemporaryFolder folder;
  write_shard(folder.file("t.bin"), counting(24));
  ShardSource source({.pattern = folder.file("t.bin"),
                      .seq_len = 16,
                      .bos_block = true,
                      .bos = 0,
                      .vocab = vocab,
                      .shuffle = true,
                      .seed = 3});
  CHECK(source.sequences() == 1);
  std::set<int> starts;
  for (std::uint64_t epoch = 0; epoch < 200; ++epoch) starts.insert(read(source, 16, epoch).targets[0]);
  CHECK(starts.size() == 9);
  CHECK(*starts.rbegin() == 8);
}

TEST_CASE(
    "shard source: a pattern that matches nothing is named, with advice; impossible options are refused") {
  const goat::test::TemporaryFolder folder;
  check_error([&] { ShardSource({.pattern = folder.file("no_*.bin"), .seq_len = 4, .vocab = 10}); },
              {folder.file("no_*.bin")});
  check_error([&] { ShardSource({.pattern = "", .seq_len = 4, .vocab = 10, .advice = "bake some"}); },
              {"no token shard matches ''", "bake some"});
  write_shard(folder.file("t.bin"), counting(10));
  const std::string pattern = folder.file("t.bin");
  CHECK_THROWS_AS(ShardSource({.pattern = pattern, .seq_len = 0, .vocab = 10}), std::invalid_argument);
  CHECK_THROWS_AS(ShardSource({.pattern = pattern, .seq_len = 4, .vocab = 0}), std::invalid_argument);
  CHECK_THROWS_AS(ShardSource({.pattern = pattern, .seq_len = 4, .bos = 10, .vocab = 10}),
                  std::invalid_argument);
  ShardSource source({.pattern = pattern, .seq_len = 4, .bos = 9, .vocab = 10});
  std::vector<std::int32_t> three(3), four(4);
  CHECK_THROWS_AS(source.read(0, three, four), std::invalid_argument);
  CHECK_THROWS_AS(source.read(0, four, three), std::invalid_argument);
}

TEST_CASE("shard source: threads read the same sequences as one") {
  const goat::test::TemporaryFolder folder;
  write_shard(folder.file("t.bin"), counting(5000));
  ShardSource source({.pattern = folder.file("t.bin"),
                      .seq_len = 32,
                      .bos_block = true,
                      .bos = 0,
                      .vocab = vocab,
                      .shuffle = true,
                      .seed = 5});
  std::vector<std::vector<std::int32_t>> want;
  for (std::uint64_t i = 0; i < 300; ++i) want.push_back(read(source, 32, i).targets);
  std::array<int, 3> equal{};
  {
    std::vector<std::jthread> threads;
    for (int& count : equal) {
      threads.emplace_back([&] {
        std::vector<std::int32_t> inputs(32), targets(32);
        for (std::size_t i = 0; i < 300; ++i) {
          source.read(i, inputs, targets);
          count += targets == want[i];
        }
      });
    }
  }
  CHECK(equal == std::array<int, 3>{300, 300, 300});
}

}  // namespace goat
