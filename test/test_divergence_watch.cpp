// DivergenceWatch: which losses are told to diverge, and how often.

#include "train/training/divergence_watch.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "test/catch.h"

using goat::DivergenceWatch;

namespace {
constexpr double none = std::numeric_limits<double>::quiet_NaN();

// The steps (from 1) at which a watch of 100 tokens (ln V = 4.605) tells of losses.
std::vector<std::size_t> told(DivergenceWatch watch, const std::vector<double>& losses) {
  std::vector<std::size_t> steps;
  for (std::size_t i = 0; i < losses.size(); ++i)
    if (watch.add(losses[i])) steps.push_back(i + 1);
  return steps;
}

std::vector<double> joined(std::initializer_list<std::vector<double>> parts) {
  std::vector<double> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<double> steps_at(std::size_t count, double loss) { return std::vector<double>(count, loss); }
}  // namespace

TEST_CASE("divergence: ten losses in a row more than a nat above a uniform guess are told once") {
  CHECK(told({100, none}, steps_at(50, 5.61)) == std::vector<std::size_t>{10});
  CHECK(told({100, none}, steps_at(50, 5.60)).empty());
  CHECK(told({100, none}, joined({steps_at(9, 700), {5.0}, steps_at(9, 700)})).empty());
  DivergenceWatch watch(100, none);
  for (int i = 0; i < 9; ++i) watch.add(700);
  CHECK_THAT(watch.add(650).value(), ContainsSubstring("650") && ContainsSubstring("ln V = 4.605"));
}

TEST_CASE(
    "divergence: a loss that came down and stays a nat above its lowest mean is told, and again after "
    "recovery") {
  const auto losses = joined({steps_at(20, 2), steps_at(30, 3.1), steps_at(10, 2), steps_at(20, 3.1)});
  CHECK(told({100, none}, losses) == std::vector<std::size_t>{30, 70});
  CHECK(told({100, none}, joined({steps_at(20, 2), steps_at(30, 2.9)})).empty());
  CHECK(told({100, 2.0}, steps_at(12, 3.1)) ==
        std::vector<std::size_t>{10});  // resumed: the best is remembered
}

TEST_CASE("divergence: a run that is resumed after any step tells the same and remembers the same") {
  const auto losses = joined({steps_at(9, 700),
                              {5.0},
                              steps_at(12, 2),
                              steps_at(15, 3.1),
                              steps_at(3, 2.5),
                              steps_at(11, 3.2),
                              steps_at(3, 2.5),
                              steps_at(14, 6)});
  DivergenceWatch unbroken(100, none), resumed = unbroken;
  for (const double loss : losses) {
    CHECK(resumed.add(loss) == unbroken.add(loss));
    CHECK(((std::isnan(resumed.best()) && std::isnan(unbroken.best())) || resumed.best() == unbroken.best()));
    CHECK(resumed.latest() == unbroken.latest());
    resumed = DivergenceWatch(100, resumed.best(), resumed.latest());
  }
  CHECK(told({100, none}, losses).size() == 3);
}

TEST_CASE("divergence: losses that are not finite neither count nor move the best mean") {
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(told({100, none}, joined({steps_at(20, none), steps_at(20, infinity)})).empty());
  DivergenceWatch watch(100, none);
  for (const double loss : joined({steps_at(10, 2), {none}, steps_at(10, 4)})) watch.add(loss);
  CHECK(watch.best() == Approx(2));
}
