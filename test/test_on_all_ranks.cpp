// Work that succeeds on all ranks or fails on all of them.

#include "train/replicas/on_all_ranks.h"

#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "data/data_error.h"
#include "test/catch.h"
#include "test/rank_threads.h"
#include "train/config/config.h"

using namespace goat;
using goat::test::ranks_of;
using goat::test::run_ranks;

namespace {

// What call(group) throws on each rank: its type and text.
template <class Call>
std::vector<std::string> thrown_by(int ranks, Call call) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  run_ranks(ranks_of(ranks), [&](RankGroup& group) {
    std::string& text = texts[static_cast<std::size_t>(group.rank())];
    try {
      call(group);
      text = "nothing";
    } catch (const ConfigError& error) {
      text = std::string("config: ") + error.what();
    } catch (const DataError& error) {
      text = std::string("data: ") + error.what();
    } catch (const std::runtime_error& error) {
      text = std::string("error: ") + error.what();
    }
    group.finish();
  });
  return texts;
}

}  // namespace

TEST_CASE("on all ranks: all results reach all, of any length") {
  const auto result = [](int rank) {
    return std::string(static_cast<std::size_t>(rank) * 1'500'000, static_cast<char>('a' + rank));
  };
  const auto texts = thrown_by(3, [&](RankGroup& group) {
    const auto all = on_all_ranks(group, "x", [&] { return result(group.rank()); });
    if (all != std::vector{result(0), result(1), result(2)}) throw std::runtime_error("other results");
    const std::string first = on_rank_0(group, "y", [&] { return result(group.rank() + 2); });
    if (first != result(2)) throw std::runtime_error("another result");
  });
  CHECK(texts == std::vector<std::string>(3, "nothing"));
}

TEST_CASE("on all ranks: what rank 0 throws, all throw, with its type and text alone") {
  const char type = GENERATE('c', 'd', 'e', 'm');
  const auto texts = thrown_by(3, [&](RankGroup& group) {
    on_rank_0(group, "x", [&]() -> std::string {
      if (group.rank() != 0) throw std::logic_error("not asked");
      if (type == 'c') throw ConfigError("reason");
      if (type == 'd') throw DataError("reason");
      if (type == 'm') throw std::bad_alloc();
      throw std::logic_error("reason");
    });
  });
  const std::string expected = type == 'c'   ? "config: reason"
                               : type == 'd' ? "data: reason"
                               : type == 'm' ? "error: out of memory on the host"
                                             : "error: reason";
  CHECK(texts == std::vector<std::string>(3, expected));
}

TEST_CASE("on all ranks: the ranks that throw are named, the type is the first one's, many are counted") {
  auto texts = thrown_by(4, [](RankGroup& group) {
    on_all_ranks(group, "x", [&]() -> std::string {
      if (group.rank() == 2) throw DataError("two");
      if (group.rank() == 3) throw ConfigError("three");
      return "fine";
    });
  });
  CHECK(std::set(texts.begin(), texts.end()).size() == 1);
  CHECK_THAT(texts[0], ContainsSubstring("data: rank 2 (host ") && ContainsSubstring("two; rank 3 (host ") &&
                           ContainsSubstring("three"));
  texts = thrown_by(5, [](RankGroup& group) {
    on_all_ranks(group, "x", [&]() -> std::string { throw std::runtime_error("disk full"); });
  });
  CHECK_THAT(texts[4], ContainsSubstring("rank 2 (") && ContainsSubstring("; and 2 more ranks") &&
                           !ContainsSubstring("rank 3 ("));
}

TEST_CASE("on all ranks: a single rank throws what it threw") {
  RankGroup group(Launch{}, {});
  const auto fail = []() -> std::string { throw std::out_of_range("own"); };
  CHECK_THROWS_AS(on_all_ranks(group, "x", fail), std::out_of_range);
  CHECK_THROWS_AS(on_rank_0(group, "x", fail), std::out_of_range);
  CHECK(on_all_ranks(group, "x", [] { return "a"; }) == std::vector<std::string>{"a"});
}
