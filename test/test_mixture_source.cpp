// MixtureSource: exact shares at any time, each source in its own order, and the text of data.mixture.
#include "data/mixture_source.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "data/shard_source.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/shard_files.h"
#include "test/temporary_folder.h"
#include "train/config/mixture.h"

namespace goat {
namespace {

using namespace test;

// A sequence is the number of the source and the index in it.
class Numbered final : public TokenSource {
 public:
  explicit Numbered(int number, std::string tokenizer = "")
      : number_(number), tokenizer_(std::move(tokenizer)) {}  // tokenizer: "NAME" or "NAME SHA256"
  std::string description() const override { return "source " + std::to_string(number_); }
  std::uint64_t sequences() const override { return 100; }
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override {
    inputs[0] = number_;
    targets[0] = static_cast<std::int32_t>(index);
  }
  void finish_check() const override { throw DataError("source " + std::to_string(number_) + " is bad"); }
  std::vector<ShardRecord> shards() const override { return {{"t.bin", number_, "samples", ""}}; }
  std::string tokenizer() const override { return tokenizer_.substr(0, tokenizer_.find(' ')); }
  std::string tokenizer_sha256() const override {
    return tokenizer_.find(' ') == std::string::npos ? "" : tokenizer_.substr(tokenizer_.find(' ') + 1);
  }
  std::vector<std::string> notes() const override { return {"note " + std::to_string(number_)}; }

 private:
  int number_;
  std::string tokenizer_;
};

MixtureSource mixture_of(const std::vector<double>& weights) {
  std::vector<MixturePart> parts;
  for (const double weight : weights)
    parts.push_back({weight, std::make_unique<Numbered>(static_cast<int>(parts.size()))});
  return MixtureSource(std::move(parts));
}

// Reads the first `count` sequences and checks each source's order, and its share after each of them. A
// source that is below `depth` splits has it to within one sequence for each.
void check_shares(const std::vector<double>& weights, std::uint64_t count) {
  MixtureSource mixture = mixture_of(weights);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double most_off = std::ceil(std::log2(static_cast<double>(weights.size())));
  std::vector<std::uint64_t> taken(weights.size());
  for (std::uint64_t index = 0; index < count; ++index) {
    const Sequence got = read(mixture, 1, index);
    const auto source = static_cast<std::size_t>(got.inputs[0]);
    REQUIRE(got.targets[0] == static_cast<std::int32_t>(taken[source]));
    ++taken[source];
    REQUIRE(mixture.counts(index + 1) == taken);
    for (std::size_t k = 0; k < weights.size(); ++k)
      REQUIRE(std::abs(static_cast<double>(taken[k]) - weights[k] / sum * static_cast<double>(index + 1)) <=
              most_off);
  }
}

}  // namespace

TEST_CASE(
    "mixture: after any number of sequences each source has had its share, and none of its own is left out") {
  const std::uint64_t seed = fresh_seed();
  INFO("seed " << seed);
  Rng rng(seed);
  check_shares({1}, 100);
  check_shares({0.7, 0.3}, 3000);
  check_shares({1, 1}, 100);
  check_shares({1e-4, 1}, 30'000);
  for (int round = 0; round < 30; ++round) {
    std::vector<double> weights(2 + rng() % 8);
    for (double& weight : weights) weight = 0.01 + static_cast<double>(rng() % 1000);
    check_shares(weights, 1500);
  }
}

TEST_CASE("mixture: the order is the documented one, and the same far from its start") {
  MixtureSource mixture = mixture_of({0.5, 0.3, 0.2});
  std::string order;
  for (std::uint64_t index = 0; index < 20; ++index)
    order += std::to_string(read(mixture, 1, index).inputs[0]);
  // The first split gives source 0 floor(i / 2 + 1 / 2) of i sequences, the second source 1 floor(0.6 i + 1 /
  // 2).
  CHECK(order == "01020102010102010201");
  for (const std::uint64_t many : {std::uint64_t{1} << 33, std::uint64_t{1} << 62}) {
    const std::vector<std::uint64_t> counts = mixture.counts(many);
    CHECK(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}) == many);
    CHECK(static_cast<double>(counts[1]) / static_cast<double>(many) == Approx(0.3).epsilon(1e-8));
    std::vector<std::uint64_t> next = counts;
    ++next[static_cast<std::size_t>(read(mixture, 1, many).inputs[0])];
    CHECK(mixture.counts(many + 1) == next);
  }
}

TEST_CASE("mixture: shards are read in the order that each set has by itself") {
  const TemporaryFolder folder;
  write_shard(folder.file("a.bin"), counting(1000));
  write_shard(folder.file("b.bin"), counting(500, 1000), Shard::uint32_tokens);
  const auto open = [&](const char* name) {
    return std::make_unique<ShardSource>(ShardOptions{.pattern = folder.file(name),
                                                      .seq_len = 8,
                                                      .bos_block = false,
                                                      .vocab = 1500,
                                                      .shuffle = true,
                                                      .seed = 9});
  };
  std::vector<MixturePart> parts;
  parts.push_back({3, open("a.bin")});
  parts.push_back({1, open("b.bin")});
  MixtureSource mixture(std::move(parts));
  const auto a = open("a.bin"), b = open("b.bin");
  std::uint64_t next_a = 0, next_b = 0;
  for (std::uint64_t index = 0; index < 400; ++index) {
    const Sequence got = read(mixture, 8, index);
    CHECK(got == (got.inputs[0] < 1000 ? read(*a, 8, next_a++) : read(*b, 8, next_b++)));
  }
  CHECK((next_a == 300 && next_b == 100));
  const std::vector<std::string> shares = mixture.shares(400);
  REQUIRE(shares.size() == 2);
  CHECK_THAT(shares[0], ContainsSubstring("75 %") && ContainsSubstring("1000 tokens") &&
                            ContainsSubstring("2.419 epochs"));  // 300 of 124 windows
  CHECK_THAT(shares[1], ContainsSubstring("25 %") && ContainsSubstring("500 tokens") &&
                            ContainsSubstring("1.639 epochs"));  // 100 of 61
  mixture.finish_check();
}

TEST_CASE("mixture: what its sources say is told of all, and records tell them apart") {
  MixtureSource mixture = mixture_of({1, 2, 3});
  CHECK(mixture.sequences() == TokenSource::endless);
  CHECK(mixture.description() == "mixture of 3 sources");
  CHECK(mixture.notes() == std::vector<std::string>{"note 0", "note 1", "note 2"});
  const std::vector<ShardRecord> records = mixture.shards();
  REQUIRE(records.size() == 3);
  CHECK((records[0].name == "1/t.bin" && records[2].name == "3/t.bin" && records[2].tokens == 2));
  CHECK(mixture_of({1}).shards().at(0).name == "t.bin");  // as without a mixture
  check_error([&] { mixture.finish_check(); }, {"source 0 is bad"});
  CHECK(mixture.tokenizer().empty());
  const auto with = [](const std::vector<std::string>& tokenizers) {
    std::vector<MixturePart> parts;
    for (const std::string& name : tokenizers)
      parts.push_back({1, std::make_unique<Numbered>(static_cast<int>(parts.size()), name)});
    return MixtureSource(std::move(parts));
  };
  CHECK(with({"", "gpt2", "gpt2"}).tokenizer() == "gpt2");
  check_error(
      [&] {
        with({"gpt2", "", "bytes"});
      },
      {"different tokenizers", "source 0: gpt2", "source 2: bytes"});
  CHECK(with({"tokenizer.json ab", "tokenizer.json ab"}).tokenizer() == "tokenizer.json");
  check_error(
      [&] {
        with({"tokenizer.json ab", "tokenizer.json cd"});
      },
      {"different tokenizers", "source 0: tokenizer.json, sha256 ab; source 1: tokenizer.json, sha256 cd"});
  for (const std::vector<double>& weights : std::vector<std::vector<double>>{
           {}, {1, 0}, {1, -1}, {std::nan(""), 1}, {std::numeric_limits<double>::infinity(), 1}, {1e-12, 1}})
    CHECK_THROWS_AS(mixture_of(weights), std::invalid_argument);
}

TEST_CASE("data.mixture: weights and globs are read, with spaces and commas in a glob") {
  const auto parse = [](const std::string& text) {
    std::string all;
    for (const auto& [weight, pattern] : parse_mixture(text))
      all += std::to_string(weight).substr(0, 4) + "<" + pattern + ">";
    return all;
  };
  CHECK(parse("0.7 data/c4/train_*.bin, 0.3 data/code/train_*.bin") ==
        "0.70<data/c4/train_*.bin>0.30<data/code/train_*.bin>");
  CHECK(parse("  2 a b/t*.bin ,3   c ") == "2.00<a b/t*.bin>3.00<c>");
  CHECK(parse("1e-1 a") == "0.10<a>");
  CHECK(parse(R"(1 a\,b, 2 c\\, 3 d\*)") == R"(1.00<a\,b>2.00<c\\>3.00<d\*>)");
  for (const char* text : {"0.7 a/*.bin, 0.3 b c", R"(1 a\,b, 2 c\\, 3 d\*)", "0.1 x"})
    CHECK(mixture_text(parse_mixture(text)) == text);
  CHECK(mixture_text({{1, "a,b"}}) == R"(1 a\,b)");
}

TEST_CASE("data.mixture: what cannot be meant is refused, naming the entry and the form") {
  const auto refused = [](const std::string& text) -> std::string {
    try {
      parse_mixture(text);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "(no error)";
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "an entry is empty"},
      {"1 a,", "an entry is empty"},
      {"1 a,,2 b", "an entry is empty"},
      {"a/*.bin", "\"a/*.bin\" does not begin with a weight"},
      {"1 a, b", "\"b\" does not begin with a weight"},
      {"1 a,b.bin", "a comma in a glob is written as \\,"},
      {"0.5x a", "does not begin with a weight"},
      {"1/a", "does not begin with a weight"},
      {"0 a", "not a positive number"},
      {"-1 a", "not a positive number"},
      {"nan a", "not a positive number"},
      {"inf a", "not a positive number"},
      {"1e999 a", "not a positive number"},
      {"1 a, 1e-9 b", "\"b\" is less than a millionth"},
      {"1e308 a, 1e308 b", "at most 1e100"},
      {"1", "\"1\" names no shards"},
      {"1 a, 2 b, 3 a", "\"a\" is there twice"},
  };
  for (const auto& [text, why] : cases) {
    INFO(text);
    CHECK_THAT(refused(text), ContainsSubstring("data.mixture: ") && ContainsSubstring(why) &&
                                  ContainsSubstring("0.7 data/c4/train_*.bin"));
  }
}

}  // namespace goat
