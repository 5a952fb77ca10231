// The lines a person watches: mean loss, speed and the time left; and the learning-rate schedule they show.

#include "train/training/progress.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>

#include "test/catch.h"
#include "test/temporary_folder.h"
#include "train/training/schedule.h"

using namespace goat;

namespace {

// What `action` prints, with neither stdout nor stderr a terminal.
std::string printed(const std::function<void()>& action) {
  const goat::test::TemporaryFolder folder;
  const auto path = folder.path() / "printed";
  std::fflush(nullptr);
  const int out = ::dup(STDOUT_FILENO), err = ::dup(STDERR_FILENO);
  std::FILE* file = std::fopen(path.c_str(), "w");
  ::dup2(::fileno(file), STDOUT_FILENO);
  ::dup2(::fileno(file), STDERR_FILENO);
  action();
  std::fflush(nullptr);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  ::close(out);
  ::close(err);
  std::fclose(file);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// One step of 1,000 tokens.
StepRecord record(std::int64_t step, double loss, double seconds) {
  StepRecord result;
  result.step = step;
  result.tokens = 1000;
  result.loss = loss;
  result.learning_rate = 0.01;
  result.grad_norm = 0.5;
  result.seconds = seconds;
  return result;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("progress: the time left is the mean of the steps after the first, times the steps left") {
  const auto lines = lines_of(printed([] {
    Progress progress(100, 10, 1e6);
    progress.report(record(1, 4, 1000));  // slow, and left out
    for (std::int64_t step = 2; step <= 99; ++step) progress.report(record(step, 3, step <= 10 ? 1 : 3));
    progress.report(record(100, 2, 3));
  }));
  REQUIRE(lines.size() == 11);
  CHECK_THAT(lines[0], ContainsSubstring("1/100   1%") && !ContainsSubstring("ETA"));
  CHECK_THAT(lines[1], ContainsSubstring("10/100  10%") && ContainsSubstring("ETA 1 min 30 s"));
  // (9 x 1 s + 10 x 3 s) / 19 x 80 steps = 164 s
  CHECK_THAT(lines[2], ContainsSubstring("20/100  20%") && ContainsSubstring("ETA 2 min 44 s"));
  CHECK_THAT(lines[10], ContainsSubstring("100/100 100%") && !ContainsSubstring("ETA"));
}

TEST_CASE("progress: a resumed run's time left counts its own steps, the first of them left out") {
  const auto lines = lines_of(printed([] {
    Progress progress(100, 10, 1e6);
    progress.report(record(51, 4, 1000));
    for (std::int64_t step = 52; step <= 60; ++step) progress.report(record(step, 3, 2));
  }));
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[1], ContainsSubstring("60/100  60%") && ContainsSubstring("ETA 1 min 20 s"));
}

TEST_CASE("progress: loss is the mean, speed that of the steps since the line before") {
  const auto lines = lines_of(printed([] {
    Progress progress(20, 4, 2e6);
    progress.report(record(1, 8, 10));
    for (std::int64_t step = 2; step <= 4; ++step)
      progress.report(record(step, static_cast<double>(step), 2));
    for (std::int64_t step = 5; step <= 8; ++step) progress.report(record(step, 1, 0.5));
  }));
  REQUIRE(lines.size() == 3);
  CHECK_THAT(lines[0], ContainsSubstring("loss 8.0000") && ContainsSubstring(" 100 tokens/s"));
  CHECK_THAT(lines[1], ContainsSubstring("loss 3.0000") && ContainsSubstring(" 500 tokens/s") &&
                           ContainsSubstring("1.0 GFLOP/s"));
  CHECK_THAT(lines[2], ContainsSubstring("loss 1.0000") && ContainsSubstring(" 2000 tokens/s"));
}

TEST_CASE("progress: durations are whole seconds below an hour, minutes above") {
  CHECK(duration_text(0.4) == "0 s");
  CHECK(duration_text(59.4) == "59 s");
  CHECK(duration_text(59.6) == "1 min 00 s");
  CHECK(duration_text(185) == "3 min 05 s");
  CHECK(duration_text(3599) == "59 min 59 s");
  CHECK(duration_text(3600) == "1 h 00 min");
  CHECK(duration_text(3720 + 59) == "1 h 02 min");
  CHECK(duration_text(100 * 3600.0) == "100 h 00 min");
}

TEST_CASE("schedule: warms up from above zero to lr, then falls by a cosine that ends at min_lr") {
  Config::Train train;
  train.lr = 0.8;
  train.min_lr = 0.2;
  train.warmup = 4;
  const std::vector<double> warming = {0.2, 0.4, 0.6, 0.8};
  for (std::int64_t step = 0; step < 4; ++step)
    CHECK(learning_rate(train, step, 10) == Approx(warming[static_cast<std::size_t>(step)]));
  // (1 + cos(pi p)) / 2 for p = 1/6 .. 6/6
  const std::vector<double> share = {0.9330127, 0.75, 0.5, 0.25, 0.0669873, 0};
  for (std::int64_t step = 4; step < 10; ++step)
    CHECK(learning_rate(train, step, 10) == Approx(0.2 + 0.6 * share[static_cast<std::size_t>(step - 4)]));
  train.warmup = 0;
  CHECK(learning_rate(train, 0, 1) == Approx(0.2));
  CHECK(learning_rate(train, 0, 2) == Approx(0.5));
}
