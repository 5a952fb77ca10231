#include "test/schedules.h"

#include <omp.h>

#include <cstring>

#include "test/catch.h"
#include "test/operand.h"

#ifdef GOAT_HAS_SIMT
#include "kernels/simt/options.h"
#endif

namespace goat::test {

namespace {
using Work = std::function<std::vector<double>()>;

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

// Runs work() in each of the named schedules, which set(i) brings about, and restores the usual one.
template <class Set, class Restore>
void compare(const std::vector<std::string>& names, const Work& work, Set set, Restore restore) {
  std::vector<double> first;
  for (std::size_t i = 0; i < names.size(); ++i) {
    set(i);
    std::vector<double> values;
    try {
      values = work();
    } catch (...) {
      restore();
      throw;
    }
    restore();
    INFO("schedule: " << names[i] << " against " << names[0]);
    if (i == 0) first = values;
    CHECK(same_bits(values, first));
  }
}

#ifdef GOAT_HAS_SIMT
void compare_on_simt(const Work& work) {
  using on_simt::Copies;
  using on_simt::Order;
  using on_simt::Streams;
  struct Schedule {
    std::string name;
    Order order;
    Copies copies;
    Streams streams;
    std::uint64_t seed;
  };
  const std::uint64_t seed = fresh_seed();
  const auto random = [](std::uint64_t of) {
    return "threads, copies and streams in random order, seed " + std::to_string(of);
  };
  const std::vector<Schedule> schedules = {
      {"threads ascending, copies late, streams at once", Order::ascending, Copies::late, Streams::at_once,
       1},
      {"threads descending, copies early, streams late", Order::descending, Copies::early, Streams::late, 1},
      {random(seed), Order::random, Copies::random, Streams::random, seed},
      {random(seed + 1), Order::random, Copies::random, Streams::random, seed + 1}};
  std::vector<std::string> names;
  for (const Schedule& schedule : schedules) names.push_back(schedule.name);
  const on_simt::Options usual = on_simt::options();
  compare(
      names, work,
      [&](std::size_t i) {
        on_simt::options().order = schedules[i].order;
        on_simt::options().copies = schedules[i].copies;
        on_simt::options().streams = schedules[i].streams;
        on_simt::options().seed = schedules[i].seed;
      },
      [&] { on_simt::options() = usual; });
}
#else
void compare_on_simt(const Work&) {}
#endif
}  // namespace

void check_schedules(const std::string& device_name, const Work& work) {
  if (device_name == "cpu") {
    const int usual = omp_get_max_threads();
    constexpr int counts[] = {1, 2, 3, 2};
    compare(
        {"1 thread", "2 threads", "3 threads", "2 threads again"}, work,
        [&](std::size_t i) { omp_set_num_threads(counts[i]); }, [&] { omp_set_num_threads(usual); });
  } else if (device_name == "simt") {
    compare_on_simt(work);
  } else {
    compare(
        {"first run", "second run", "third run"}, work, [](std::size_t) {}, [] {});
  }
}

std::vector<double> concatenated(std::initializer_list<std::vector<double>> parts) {
  std::vector<double> all;
  for (const std::vector<double>& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace goat::test
