// The retrieval tasks: their texts as documented, where the answer stands, and what is refused.
#include "data/needle_task.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "test/catch.h"
#include "test/operand.h"

namespace goat {
namespace {

char character_of(std::int32_t id) {
  REQUIRE(id >= task_special_ids);
  REQUIRE(id < task_vocab);
  return task_alphabet[static_cast<std::size_t>(id - task_special_ids)];
}

// The T + 1 characters.
std::string sample(TokenSource& source, std::int64_t length, std::uint64_t index) {
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(length), -7), targets(inputs);
  source.read(index, inputs, targets);
  for (std::size_t i = 0; i + 1 < inputs.size(); ++i) REQUIRE(targets[i] == inputs[i + 1]);
  std::string text;
  for (const std::int32_t id : inputs) text += character_of(id);
  return text + character_of(targets.back());
}

std::string passkey_text(NeedleTaskOptions options, std::uint64_t index) {
  NeedleTask task(options);
  return sample(task, options.seq_len, index);
}

NeedleTaskOptions niah(std::int64_t length, double depth, std::uint64_t seed) {
  return {.kind = NeedleKind::niah,
          .seq_len = length,
          .answer_length = 12,
          .min_depth = depth,
          .max_depth = depth,
          .seed = seed,
          .validation = true};
}

}  // namespace

TEST_CASE("needle task: 70 ids, each with a character of its own, in the documented order") {
  CHECK(std::set<char>(task_alphabet.begin(), task_alphabet.end()).size() == 67);
  CHECK(task_alphabet[0] == 'a');
  CHECK(task_alphabet[26] == '0');
  CHECK(task_alphabet[36] == ' ');
  CHECK(task_alphabet[66] == '\\');
  const std::string others = ":;,.?+-_=/'\"[](){}<>#@!$%^&*|\\";
  for (const char sign : others) CHECK(std::ranges::count(task_alphabet, sign) == 1);
}

TEST_CASE("needle task: draws the documented Philox words") {
  // computed by an independent implementation in Python (test/reference/needle_numpy.py)
  NeedleTask training({.seq_len = 120, .seed = 1});
  CHECK(sample(training, 120, 0) ==
        " system log: gnlkolwqtcxixyexezxvcannlofneapasskey: 70759506 fvpfurqflpvhdcxrwjrlpghv "
        "q: what is the passkey? a: 70759506");
  NeedleTask validation({.seq_len = 120, .seed = 1, .validation = true});
  CHECK(sample(validation, 120, 3) ==
        " system log: nistpasskey: 34914313 xhrbspjuqzvjwhuqw xnpdxijrkfpsnirjdahxdcswaoytqpet "
        "q: what is the passkey? a: 34914313");
  NeedleTask haystack({.kind = NeedleKind::niah,
                       .seq_len = 100,
                       .answer_length = 12,
                       .min_depth = 0.1,
                       .max_depth = 0.9,
                       .seed = std::uint64_t{7} << 32 | 5});
  CHECK(sample(haystack, 100, std::uint64_t{3} << 32 | 9) ==
        " doc: d aaddaccccbneedle: bccbdddddabc bcc aa cabbbc aaad dac  q: what is the needle? "
        "a: bccbdddddabc");
}

TEST_CASE("needle task: the answer is the end of the targets, and the text that is hidden") {
  NeedleTask task({.seq_len = 200, .answer_length = 5, .seed = 4});
  CHECK(task.answer(17) == TargetRange{195, 200});
  for (std::uint64_t index = 0; index < 20; ++index) {
    const std::string text = sample(task, 200, index);
    CHECK(text.find("passkey: " + text.substr(196) + " ") < 200);
  }
}

TEST_CASE("needle task: a depth is fixed or drawn, to the character") {
  const std::uint64_t seed = test::fresh_seed();
  INFO("seed " << seed);
  const std::int64_t filler = 512 + 1 - needle_form(NeedleKind::niah).shortest(12);
  const auto place = [&](double depth) {
    NeedleTask task(niah(512, depth, seed));
    return static_cast<std::int64_t>(sample(task, 512, 3).find("needle: ")) - 6;
  };
  CHECK(place(0) == 0);
  CHECK(place(0.5) == filler / 2);
  CHECK(place(1) == filler);

  NeedleTask drawn({.seq_len = 1024, .seed = seed});
  double sum = 0, most = 0;
  const int samples = 400;
  const auto characters = static_cast<double>(1024 + 1 - needle_form(NeedleKind::passkey).shortest(8));
  for (std::uint64_t index = 0; index < samples; ++index) {
    const auto before = static_cast<double>(sample(drawn, 1024, index).find("passkey: ") - 13) / characters;
    sum += before;
    most = std::max(most, before);
  }
  CHECK(sum / samples == Approx(0.4).margin(6 * 0.8 / std::sqrt(12.0 * samples)));
  CHECK(most <= 0.8);
  CHECK(most > 0.75);
}

TEST_CASE("needle task: a sample keeps its answer and its filler at every depth and length") {
  NeedleTask near(niah(512, 0.1, 2)), deep(niah(512, 0.9, 2)), longer(niah(2048, 0.1, 2));
  const auto filler = [](std::string text) {
    text.erase(text.find("needle: "), 8 + 12 + 1);
    return text.substr(6, text.find(" q: ") - 6);
  };
  const std::string one = sample(near, 512, 7), other = sample(deep, 512, 7), third = sample(longer, 2048, 7);
  CHECK(one != other);
  CHECK(filler(one) == filler(other));
  CHECK(filler(third).starts_with(filler(one)));
  CHECK(one.substr(501) == third.substr(2037));
}

TEST_CASE("needle task: a sample depends on task, seed, split and index only") {
  const std::uint64_t seed = test::fresh_seed();
  INFO("seed " << seed);
  const NeedleTaskOptions options{.seq_len = 128, .seed = seed};
  NeedleTask task(options), again(options);
  const std::string fifth = sample(task, 128, 5);
  for (std::uint64_t index = 0; index < 5; ++index) CHECK(sample(again, 128, index) != fifth);
  CHECK(sample(again, 128, 5) == fifth);
  CHECK(passkey_text({.seq_len = 128, .seed = seed, .validation = true}, 5) != fifth);
  CHECK(passkey_text({.seq_len = 128, .seed = seed + 1}, 5) != fifth);
  CHECK(task.sequences() == TokenSource::endless);
}

TEST_CASE("needle task: impossible options and spans of the wrong size are refused") {
  const std::int64_t shortest = needle_form(NeedleKind::passkey).shortest(8);
  CHECK(passkey_text({.seq_len = shortest}, 0).size() == static_cast<std::size_t>(shortest) + 1);
  CHECK_THROWS_WITH(NeedleTask({.seq_len = shortest - 1}),
                    ContainsSubstring("too short for passkey") &&
                        ContainsSubstring("at least " + std::to_string(shortest)));
  CHECK_THROWS_AS(NeedleTask({.answer_length = 0}), std::invalid_argument);
  CHECK_THROWS_AS(NeedleTask({.min_depth = -0.1}), std::invalid_argument);
  CHECK_THROWS_AS(NeedleTask({.min_depth = 0.9}), std::invalid_argument);
  CHECK_THROWS_AS(NeedleTask({.max_depth = 1.1}), std::invalid_argument);
  CHECK_THROWS_AS(NeedleTask({.max_depth = std::nan("")}), std::invalid_argument);
  NeedleTask task({.seq_len = 100});
  std::vector<std::int32_t> short_span(99), whole(100);
  CHECK_THROWS_AS(task.read(0, short_span, whole), std::invalid_argument);
  CHECK_THROWS_AS(task.read(0, whole, short_span), std::invalid_argument);
}

}  // namespace goat
