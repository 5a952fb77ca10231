// The lines of long work.

#include "train/speed/slow_work.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <thread>

#include "test/catch.h"
#include "test/temporary_folder.h"

namespace {

// Takes what is written to stderr while it lives.
class Stderr {
 public:
  Stderr() {
    const int file = ::open(name_.c_str(), O_WRONLY | O_CREAT, 0600);
    ::dup2(file, STDERR_FILENO);
    ::close(file);
  }
  ~Stderr() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }

  std::string text() const {
    std::ifstream file(name_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void wait_for(const std::string& words) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (text().find(words) == std::string::npos && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  goat::test::TemporaryFolder folder_;
  std::string name_ = folder_.file("stderr");
  int before_ = ::dup(STDERR_FILENO);
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TEST_CASE("slow work: short work is silent") {
  const Stderr told;
  {
    goat::SlowWork work("short", "keys", 10);
    work.add(10);
  }
  CHECK(told.text().empty());
}

TEST_CASE("slow work: a line an interval says what share is done, by whatever thread, and the time left") {
  std::string text;
  double before_adding = 0;
  {
    const Stderr told;
    const auto start = std::chrono::steady_clock::now();
    goat::SlowWork work("prior", "keys", 1e6, std::chrono::milliseconds(100));
    told.wait_for("prior: 0%");
    before_adding = seconds_since(start);
    {
      std::jthread one([&] { work.add(1e5); }), two([&] { work.add(1.5e5); });
    }
    told.wait_for("prior: 25%");
    text = told.text();
  }
  std::smatch match;
  INFO(text);
  // A line may fall between the two that add.
  REQUIRE(std::regex_search(text, match,
                            std::regex("^(?:prior: 0%  0 keys/s\n)+(?:prior: 1[05]%[^\n]*\n)*"
                                       "prior: 25%  ([0-9]+) keys/s  ETA ([0-9]+) s\n")));
  const double rate = std::stod(match[1]);
  CHECK(rate > 0);
  CHECK(rate <= 250'000 / before_adding + 1);
  CHECK(std::abs(std::stod(match[2]) - 750'000 / rate) <= 1);
}

TEST_CASE("slow work: the time left is that of what is not done") {
  std::string text;
  {
    const Stderr told;
    goat::SlowWork work("almost", "keys", 100, std::chrono::milliseconds(600));
    work.add(95);
    told.wait_for("almost: 95%");
    text = told.text();
  }
  std::smatch match;
  INFO(text);
  REQUIRE(std::regex_search(text, match, std::regex("^almost: 95%  ([0-9]+) keys/s  ETA ([0-9]+) s\n")));
  CHECK(std::abs(std::stod(match[2]) - 5 / std::stod(match[1])) <= 0.55);
}
