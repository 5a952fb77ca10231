// The lines of long work.

#include "train/commands/slow_work.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>

#include "test/catch.h"
#include "test/temporary_folder.h"

namespace {

// What `work` writes to stderr.
template <class Work>
std::string stderr_of(Work work) {
  const goat::test::TemporaryFolder folder;
  const int before = ::dup(STDERR_FILENO),
            file = ::open(folder.file("stderr").c_str(), O_WRONLY | O_CREAT, 0600);
  ::dup2(file, STDERR_FILENO);
  work();
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  ::close(file);
  std::ifstream text(folder.file("stderr"));
  return {std::istreambuf_iterator<char>(text), {}};
}

}  // namespace

TEST_CASE("slow work: short work is silent") {
  CHECK(stderr_of([] {
          goat::SlowWork work("short", "keys", 10);
          work.add(10);
        }).empty());
}

TEST_CASE("slow work: a line an interval says what share is done, by whatever thread, and the time left") {
  using namespace std::chrono_literals;
  const std::string text = stderr_of([] {
    goat::SlowWork work("prior", "keys", 1e6, 150ms);
    std::this_thread::sleep_for(230ms);
    {
      std::jthread one([&] { work.add(1e5); }), two([&] { work.add(1.5e5); });
    }
    std::this_thread::sleep_for(200ms);
  });
  std::smatch match;
  INFO(text);
  REQUIRE(std::regex_search(
      text, match, std::regex("^prior: 0%  0 keys/s\n(?:prior: 25%  ([0-9]+) keys/s  ETA ([0-9]+) s\n)+$")));
  const double rate = std::stod(match[1]);
  CHECK(rate > 0);
  CHECK(rate < 250'000 / 0.29);
  CHECK(std::abs(std::stod(match[2]) - 750'000 / rate) <= 1);
}

TEST_CASE("slow work: the time left is that of what is not done") {
  using namespace std::chrono_literals;
  const std::string text = stderr_of([] {
    goat::SlowWork work("almost", "keys", 100, 600ms);
    work.add(95);
    std::this_thread::sleep_for(700ms);
  });
  INFO(text);
  CHECK(std::regex_match(text, std::regex("almost: 95%  [0-9]+ keys/s  ETA 0 s\n")));
}
