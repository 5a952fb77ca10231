// CropSource: every record once an epoch, at offsets that are uniform, and the same starts in validation.
#include "data/crop_source.h"

#include <map>
#include <set>

#include "data/permutation.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/shard_files.h"
#include "test/temporary_folder.h"

namespace goat {
namespace {

using namespace test;

// 60 records of 25 tokens in shards of both widths, one of them empty.
struct Records {
  static constexpr std::int64_t length = 25, count = 60;
  TemporaryFolder folder;

  Records() {
    write_shard(folder.file("t_0.bin"), counting(10 * 25));
    write_shard(folder.file("t_1.bin"), {});
    write_shard(folder.file("t_2.bin"), counting(50 * 25, 10 * 25), Shard::uint32_tokens);
  }
  CropOptions options(std::int64_t seq_len, bool shuffle, std::uint64_t seed = 0) const {
    return {.pattern = folder.file("t_*.bin"),
            .seq_len = seq_len,
            .record_tokens = length,
            .vocab = 1500,
            .shuffle = shuffle,
            .seed = seed};
  }
};

}  // namespace

TEST_CASE("crop source: in order, sequence r is the start of record r at every length") {
  const Records records;
  for (const std::int64_t length : {1, 2, 16, 24}) {
    CropSource source(records.options(length, false));
    REQUIRE(source.sequences() == Records::count);
    for (std::uint64_t index = 0; index < 2 * Records::count; ++index) {
      const auto first = static_cast<std::int32_t>(index % Records::count * Records::length);
      const Sequence got = read(source, static_cast<std::size_t>(length), index);
      CHECK(got.inputs == counting(static_cast<std::size_t>(length), first));
      CHECK(got.targets == counting(static_cast<std::size_t>(length), first + 1));
    }
  }
}

TEST_CASE("crop source: a shuffled epoch crops each record once, within it, at every offset as often") {
  const std::uint64_t seed = fresh_seed();
  INFO("seed " << seed);
  const Records records;
  constexpr std::size_t length = 16;
  constexpr std::int64_t offsets = Records::length - 16;  // T + 1 tokens of 25: 0 .. 8
  constexpr int epochs = 60;
  CropSource source(records.options(length, true, seed));
  std::map<std::int64_t, int> times;
  std::set<std::vector<std::int64_t>> orders, cuts;
  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
    std::vector<std::int64_t> order, cut(Records::count);
    for (std::uint64_t i = 0; i < Records::count; ++i) {
      const Sequence got = read(source, length, epoch * Records::count + i);
      const std::int32_t first = got.inputs[0];
      REQUIRE(got.inputs == counting(length, first));
      REQUIRE(got.targets == counting(length, first + 1));
      order.push_back(first / Records::length);
      cut[static_cast<std::size_t>(order.back())] = first % Records::length;
      ++times[first % Records::length];
    }
    orders.insert(order);
    cuts.insert(cut);
    CHECK(std::set(order.begin(), order.end()).size() == Records::count);
  }
  CHECK((orders.size() == epochs && cuts.size() == epochs));
  // 3600 draws of 9 offsets: chi-square with 8 degrees of freedom exceeds 60 with probability below 1e-9.
  const double expected = static_cast<double>(epochs * Records::count) / static_cast<double>(offsets);
  double chi_square = 0;
  for (const auto& [offset, count] : times) {
    CHECK((0 <= offset && offset < offsets));
    chi_square += (count - expected) * (count - expected) / expected;
  }
  CHECK(times.size() == offsets);
  CHECK(chi_square < 60);
}

TEST_CASE("crop source: the order and the offsets are the documented ones") {
  const Records records;
  constexpr std::uint64_t seed = 77, index = 3 * Records::count + 5;
  CropSource source(records.options(10, true, seed));
  const std::uint64_t record = Permutation(Records::count, seed, 3)(5);
  const PhiloxBlock key = philox(seed, RandomStream::shuffle, 3, 2);
  const PhiloxBlock words = philox4x32({static_cast<std::uint32_t>(record), 0, 0, 0}, {key[0], key[1]});
  const auto offset = static_cast<std::int32_t>(uniform(words[0]) * 15);
  CHECK(read(source, 10, index).inputs[0] == static_cast<std::int32_t>(record) * 25 + offset);
  Tokens starts;
  for (const std::uint64_t i : {0, 1, 2, 59, 60, 1000}) starts.push_back(read(source, 10, i).inputs[0]);
  CHECK(starts == Tokens{859, 900, 525, 1052, 1400, 537});
}

TEST_CASE(
    "crop source: sequences as long as a record, shards of parts of records and other lengths are refused") {
  const Records records;
  for (const std::int64_t length : {25, 26, 1'000'000})
    check_error([&] { CropSource(records.options(length, false)); },
                {"record_tokens = 25", "sequence of " + std::to_string(length)});
  write_shard(records.folder.file("t_3.bin"), counting(49));
  check_error([&] { CropSource(records.options(10, false)); },
              {records.folder.file("t_3.bin"), "49 tokens", "record_tokens = 25"});
  write_shard(records.folder.file("t_3.bin"), counting(50));
  const auto meta = [&](const std::string& rest) {
    records.folder.file("meta.json",
                        R"({"tokenizer": "dna", "vocab": 1500, "end_of_text": null, "shards": [])" + rest);
  };
  meta(R"(, "record_tokens": 50})");
  check_error([&] { CropSource(records.options(10, false)); },
              {records.folder.path(), "records of 50 tokens", "record_tokens = 25", "set it to 50"});
  for (const char* fits : {R"(, "record_tokens": 25})", R"(, "record_tokens": null})", "}"}) {
    meta(fits);
    CHECK(CropSource(records.options(10, false)).sequences() == 62);
  }
  const TemporaryFolder empty;
  write_shard(empty.file("t.bin"), {});
  check_error(
      [&] { CropSource({.pattern = empty.file("t.bin"), .seq_len = 4, .record_tokens = 5, .vocab = 10}); },
      {empty.file("t.bin"), "no record"});
  CHECK_THROWS_AS(CropSource(records.options(0, false)), std::invalid_argument);
  CropSource source(records.options(10, false));
  std::vector<std::int32_t> nine(9), ten(10);
  CHECK_THROWS_AS(source.read(0, nine, ten), std::invalid_argument);
  CHECK_THROWS_AS(source.read(0, ten, nine), std::invalid_argument);
}

}  // namespace goat
