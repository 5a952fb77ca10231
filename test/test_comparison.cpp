// Several evaluations: what their runs and files are called, and the table that compares them.

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "test/catch.h"
#include "test/temporary_folder.h"
#include "train/config/config.h"
#include "train/eval/comparison.h"
#include "train/eval/output_files.h"
#include "train/eval/run_names.h"

using namespace goat;

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

using Names = std::vector<std::string>;

json perplexities(const std::string& protocol, const std::vector<std::pair<int, double>>& rows,
                  const std::string& data = "shards 'a'") {
  json evaluation = {{"protocol", protocol}, {"data", data}, {"results", json::array()}};
  for (const auto& [length, value] : rows)
    evaluation["results"].push_back({{"length", length}, {"nll", 1.0}, {"perplexity", value}});
  return evaluation;
}

json answers(const std::string& task, const std::vector<std::tuple<int, double, double>>& cells) {
  json evaluation = {{"task", task}, {"results", json::array()}};
  for (const auto& [length, depth, share] : cells)
    evaluation["results"].push_back({{"length", length},
                                     {"depth", depth},
                                     {"nll", 1.0},
                                     {"strict_accuracy", 0.0},
                                     {"span_token_accuracy", share}});
  return evaluation;
}

std::size_t longest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t longest = 0;
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}
}  // namespace

TEST_CASE("comparison: a run's name is the fewest last folders that no other run ends with") {
  CHECK(shortest_names({"/runs/a", "/runs/b"}) == Names{"a", "b"});
  CHECK(shortest_names({"/runs/1/a", "/runs/2/a", "/runs/b"}) == Names{"1/a", "2/a", "b"});
  CHECK(shortest_names({"/x/y/a", "/z/y/a", "/x/z/a"}) == Names{"x/y/a", "z/y/a", "z/a"});
  CHECK(shortest_names({"/a", "/b/a"}) == Names{"/a", "b/a"});  // the one is the end of the other
  CHECK(shortest_names({"/runs/a", "/runs/a"}) == Names{"a", "a"});
  CHECK(shortest_names({"/"}) == Names{"/"});
}

TEST_CASE("comparison: the file of --per-token takes what tells the evaluations apart into its name") {
  CHECK(per_token_path("out/nll.npy", {}) == "out/nll.npy");
  CHECK(per_token_path("out/nll.npy", {"2/a", "paper", "128"}) == "out/nll_2_a_paper_128.npy");
  CHECK(per_token_path("nll", {"b"}) == "nll_b");
}

TEST_CASE("comparison: two losses for one file, or for that of --json, are refused, however it is written") {
  const goat::test::TemporaryFolder folder;
  const std::string nll = folder.file("nll.npy");
  fs::create_directory_symlink(folder.path(), folder.path() / "link");
  const fs::path again = folder.path() / "link" / "nll_a.npy", first = folder.path() / "nll_a.npy",
                 second = folder.path() / "nll_b.npy";
  EvalOptions options;
  options.per_token = nll;
  CHECK_NOTHROW(check_per_token_files(options, {first, second}));
  CHECK_THROWS_WITH(check_per_token_files(options, {first, second, again}), ContainsSubstring("nll_a.npy"));
  options.json = second.string();
  CHECK_THROWS_WITH(check_per_token_files(options, {first, second}), ContainsSubstring("same file"));
  options.per_token = "/dev/null";
  CHECK_NOTHROW(check_per_token_files(options, {"/dev/null"}));
  CHECK_THROWS_WITH(check_per_token_files(options, {"/dev/null_a"}), ContainsSubstring("is not a file"));
}

TEST_CASE("comparison: a table for each protocol and task, with a row a run and a column a length") {
  const json niah = answers("niah", {{128, 0.1, 1}, {128, 0.5, 0.75}, {512, 0.1, 0.5}, {512, 0.5, 0}});
  CHECK(comparison_text({"goat", "goat", "rope_long", "needle"},
                        {perplexities("recut", {{128, 4.25}, {256, 4.5}}),
                         perplexities("paper", {{256, 123456.7}, {128, 4.125}}),
                         perplexities("recut", {{64, 5}, {128, 99999.25}}), niah}) ==
        "perplexity by length, protocol recut\n"
        "                  64        128        256\n"
        "goat               -      4.250      4.500\n"
        "rope_long      5.000  99999.250          -\n"
        "\n"
        "perplexity by length, protocol paper\n"
        "            128        256\n"
        "goat      4.125   1.23e+05\n"
        "\n"
        "niah: answer tokens that are right, by length\n"
        "              128        512\n"
        "needle      87.5%      25.0%\n");
}

TEST_CASE("comparison: names that are not ASCII stand in line") {
  const json one = perplexities("recut", {{128, 4.25}});
  CHECK(comparison_text({"größe", "文字", "e\u0301", "a\xff"}, {one, one, one, one}) ==
        "perplexity by length, protocol recut\n"
        "             128\n"
        "größe      4.250\n"
        "文字       4.250\n"
        "e\u0301          4.250\n"
        "a\xff         4.250\n");
}

TEST_CASE("comparison: the table says if the runs were evaluated on different data") {
  const auto title = [](const std::string& data) {
    const std::string text = comparison_text(
        {"a", "b"}, {perplexities("recut", {{8, 2}}, "shards 'a'"), perplexities("recut", {{8, 3}}, data)});
    return text.substr(0, text.find('\n'));
  };
  CHECK(title("shards 'a'") == "perplexity by length, protocol recut");
  CHECK(title("shards 'b'") == "perplexity by length, protocol recut (of different data, see above)");
}

TEST_CASE("comparison: what is wider than 100 columns goes on below, also beside long names") {
  std::vector<std::pair<int, double>> rows;
  for (int length = 128; length <= 128 << 9; length *= 2)
    rows.emplace_back(length, std::numeric_limits<double>::infinity());
  for (const std::size_t columns : {1, 12, 34, 35, 89, 99, 200}) {
    const std::string text = comparison_text({std::string(columns, 'r')}, {perplexities("recut", rows)});
    INFO(text);
    CHECK(longest_line(text) <= (columns < 90 ? 100 : columns + 11));
    for (const auto& [length, value] : rows) {
      CHECK(text.find(" " + std::to_string(length)) != std::string::npos);
    }
    const auto cells = [&](const std::string& cell) {
      std::size_t count = 0;
      for (std::size_t at = text.find(cell); at != std::string::npos; at = text.find(cell, at + 1)) ++count;
      return count;
    };
    CHECK(cells(" inf") == rows.size());
    const std::size_t room = columns < 90 ? (100 - columns) / 11 : 1;
    CHECK(cells(std::string(columns, 'r') + " ") == (rows.size() + room - 1) / room);
  }
}
