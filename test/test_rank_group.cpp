// What ranks do once they have met, here threads of one process: exchanges, posts, votes, and how all of them
// end when one fails.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "test/catch.h"
#include "test/rank_threads.h"
#include "train/ranks/rank_group.h"

using namespace goat;
using namespace std::chrono_literals;
using goat::test::Meeting;
using goat::test::ranks_of;
using goat::test::RankSetup;
using goat::test::run_ranks;

namespace {

constexpr Phase training{"train"}, saving{"save", true};

std::vector<RankSetup> with_limits(int size, std::chrono::milliseconds silence,
                                   std::chrono::milliseconds progress,
                                   std::chrono::milliseconds long_progress = 20s) {
  std::vector<RankSetup> setups = ranks_of(size);
  for (RankSetup& setup : setups) setup.options.limits = {50ms, silence, progress, long_progress};
  return setups;
}

// Every rank's on_failure was called once, with this culprit, exit code and words.
void check_failed(const std::vector<Meeting>& meetings, int rank, int code,
                  const std::vector<std::string>& words) {
  for (const Meeting& meeting : meetings) {
    INFO("rank " << meeting.rank << ": " << meeting.error << meeting.said);
    REQUIRE(meeting.failures.size() == 1);
    CHECK(meeting.failures[0].rank == rank);
    CHECK(meeting.failures[0].code == code);
    CHECK_THAT(meeting.said, ContainsSubstring("rank " + std::to_string(meeting.rank) + " (host "));
    for (const std::string& word : words) CHECK_THAT(meeting.said, ContainsSubstring(word));
  }
}

}  // namespace

TEST_CASE("rank group: every rank gets the bytes of all, whatever their sizes and in step") {
  const std::string large(3 << 20, 'x');
  const auto meetings = run_ranks(ranks_of(4), [&](RankGroup& group) {
    for (int round = 0; round < 20; ++round) {
      const std::string own = round == 7 ? large + std::to_string(group.rank())
                                         : std::string(static_cast<std::size_t>(group.rank()), 'a');
      const auto parts = group.gather("round " + std::to_string(round), own);
      if (parts.size() != 4) throw std::runtime_error("parts are missing");
      for (std::size_t rank = 0; rank < 4; ++rank)
        if (parts[rank] != (round == 7 ? large + std::to_string(rank) : std::string(rank, 'a')))
          throw std::runtime_error("a part is wrong");
    }
    group.finish();
  });
  for (const Meeting& meeting : meetings) {
    CHECK(meeting.error.empty());
    CHECK(meeting.said.empty());
    CHECK(meeting.failures.empty());
  }
}

TEST_CASE("rank group: a vote names who objects, the same text everywhere; without objection it is empty") {
  std::vector<std::string> texts(3), none(3);
  run_ranks(ranks_of(3), [&](RankGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    none[rank] = group.agree("save", "");
    texts[rank] = group.agree("save", rank ? "disk " + std::to_string(rank) + " is full" : "");
    group.finish();
  });
  CHECK(none == std::vector<std::string>(3));
  CHECK(std::set(texts.begin(), texts.end()).size() == 1);
  CHECK_THAT(texts[0], ContainsSubstring("rank 1 (host ") && ContainsSubstring("disk 1 is full; rank 2") &&
                           ContainsSubstring("disk 2 is full"));
}

TEST_CASE("rank group: one rank needs no connection") {
  const auto meetings = run_ranks({{Launch{}}}, [](RankGroup& group) {
    if (group.gather("x", "own") != std::vector<std::string>{"own"}) throw std::runtime_error("gather");
    if (group.agree("x", "no") != name_of(group.peers()[0]) + ": no") throw std::runtime_error("agree");
    group.watch([] { return ""; });
    group.finish();
    group.fail("the disk is full", 3);
  });
  CHECK(meetings[0].error.empty());
  check_failed(meetings, 0, 3, {"the disk is full"});
}

TEST_CASE("rank group: a rank that fails ends all with its message and its code") {
  const int culprit = GENERATE(0, 1, 2);
  const auto meetings = run_ranks(ranks_of(3), [&](RankGroup& group) {
    if (group.rank() == culprit) group.fail("shard_7.bin is damaged", 3);
    group.gather("step", "");
  });
  check_failed(meetings, culprit, 3,
               {"rank " + std::to_string(culprit) + " (host ", "shard_7.bin is damaged"});
  for (const Meeting& meeting : meetings)
    CHECK_THAT(meeting.error, ContainsSubstring("shard_7.bin"));  // RunFailed
}

TEST_CASE("rank group: a rank whose connection ends ends all") {
  const int culprit = GENERATE(0, 2);
  const auto before = std::chrono::steady_clock::now();
  const auto meetings = run_ranks(ranks_of(3), [&](RankGroup& group) {
    group.gather("step", "");
    if (group.rank() != culprit) group.gather("step", "");
  });
  CHECK(std::chrono::steady_clock::now() - before < 3s);
  std::vector<Meeting> others;
  for (const Meeting& meeting : meetings)
    if (meeting.rank != culprit) others.push_back(meeting);
  check_failed(others, culprit, 1, {"rank " + std::to_string(culprit) + " (host ", "has ended"});
}

TEST_CASE("rank group: ranks that are at different exchanges are found at once") {
  const auto meetings = run_ranks(ranks_of(3), [](RankGroup& group) {
    group.gather("step", "");
    group.gather(group.rank() == 1 ? "save" : "step", "");
  });
  for (const Meeting& meeting : meetings) {
    REQUIRE(meeting.failures.size() == 1);
    CHECK_THAT(meeting.said, ContainsSubstring("'save'") && ContainsSubstring("'step'") &&
                                 ContainsSubstring("rank 1 (host "));
  }
}

TEST_CASE("rank group: a rank that does not come to an exchange in time is named") {
  const int culprit = GENERATE(0, 1);
  const auto meetings = run_ranks(ranks_of(3), [&](RankGroup& group) {
    group.enter(training);
    if (group.rank() == culprit) {
      std::this_thread::sleep_for(1500ms);
      group.gather("save", "");
    } else {
      group.gather("save", "", 400ms);
    }
  });
  check_failed(meetings, culprit, 1,
               {"rank " + std::to_string(culprit) + " did not come to 'save' within 400 ms"});
}

TEST_CASE("rank group: alive without progress, all end, and each rank's place is told") {
  const auto meetings = run_ranks(with_limits(3, 20s, 500ms), [](RankGroup& group) {
    group.enter(training);
    group.at(7);
    group.enqueued(group.rank() == 2 ? 12 : 13);
    group.finished(12);
    group.gather("step", "");
    if (group.rank() == 2) std::this_thread::sleep_for(1500ms);
    group.gather("step", "");
  });
  check_failed(meetings, 2, 1,
               {"no rank has got on for 500 ms", "step 7, train, collective 12 of 13", "rank 2 is behind"});
}

TEST_CASE("rank group: a rank that hangs where it has no step or collective to show is named") {
  const int culprit = GENERATE(0, 1);
  const bool in_save = GENERATE(true, false);
  const auto meetings = run_ranks(with_limits(3, 20s, 100ms, 500ms), [&](RankGroup& group) {
    group.at(20);
    group.enqueued(102);
    group.finished(group.rank() == 2 ? 101 : 102);  // rank 2 has not looked yet
    if (!in_save) group.finished(102);
    group.enter(saving);
    if (!in_save) group.post("0");
    if (group.rank() == culprit) std::this_thread::sleep_for(1500ms);
    if (in_save) group.gather("the pieces", "");
    if (in_save) return;
    if (group.rank() != culprit) group.post("1");
    group.collect();
    group.collect();
  });
  const std::string name = "rank " + std::to_string(culprit);
  check_failed(meetings, culprit, 1,
               {"no rank has got on for 500 ms",
                "; " + name + (in_save ? " has not come to 'the pieces'" : " has not given report 1")});
}

TEST_CASE("rank group: progress, or a phase that may take long, holds the judgement off") {
  const auto meetings = run_ranks(with_limits(2, 20s, 400ms), [](RankGroup& group) {
    group.enter(training);
    for (int step = 1; step <= 8; ++step) {
      if (group.rank() == 1) group.at(step);  // one rank gets on: the other may wait for it
      std::this_thread::sleep_for(100ms);
    }
    if (group.rank() == 0) group.enter(saving);
    std::this_thread::sleep_for(800ms);
    group.finish();
  });
  for (const Meeting& meeting : meetings) CHECK((meeting.error.empty() && meeting.said.empty()));
}

TEST_CASE("rank group: trouble that shows only when asked for ends all") {
  const bool thrown = GENERATE(false, true);
  std::vector<RankSetup> setups = ranks_of(2);
  for (RankSetup& setup : setups) setup.options.verdict_time = 50ms;
  const auto meetings = run_ranks(setups, [&](RankGroup& group) {
    if (group.rank() == 1)
      group.watch([thrown]() -> std::string {
        if (thrown) throw std::runtime_error("NCCL: remote error");
        return "NCCL: remote error";
      });
    group.gather("step", "");
    std::this_thread::sleep_for(800ms);
    group.gather("step", "");
  });
  check_failed(meetings, 1, 1, {"rank 1 (host ", "NCCL: remote error"});
}

TEST_CASE("rank group: trouble of one rank leaves time for the rank that is its cause") {
  const auto meetings = run_ranks(ranks_of(2), [&](RankGroup& group) {
    if (group.rank() == 1) group.watch([] { return std::string("NCCL: remote error"); });
    group.gather("step", "");
    std::this_thread::sleep_for(500ms);
    if (group.rank() == 0) group.fail("out of memory", 1);
    group.gather("step", "");
  });
  check_failed(meetings, 0, 1, {"rank 0 (host ", "out of memory"});
}

TEST_CASE("rank group: ranks may leave at different times after the orderly end") {
  for (int repetition = 0; repetition < 5; ++repetition) {
    const auto meetings = run_ranks(ranks_of(3), [](RankGroup& group) {
      group.finish();
      std::this_thread::sleep_for(group.rank() * 60ms);
    });
    for (const Meeting& meeting : meetings) CHECK((meeting.error.empty() && meeting.said.empty()));
  }
}

TEST_CASE("rank group: impossible limits and parts are refused") {
  RankSetup setup{Launch{}};
  setup.options.limits.heartbeat_timeout = setup.options.limits.beat_interval;
  CHECK_THAT(run_ranks({setup}, [](RankGroup&) {})[0].error, ContainsSubstring("heartbeat_timeout"));
  const std::string huge(most_gathered / 2 + 1, 'x');
  const auto meetings = run_ranks(ranks_of(2), [&](RankGroup& group) {
    if (group.rank() == 1) group.gather("step", huge);
  });
  CHECK_THAT(meetings[1].error, ContainsSubstring("at most"));
}

namespace {

std::string text_of(int rank, int number) {
  return std::string(static_cast<std::size_t>(rank), 'x') + std::to_string(number);
}

void collect_and_check(RankGroup& group, int number) {
  const std::vector<std::string> parts = group.collect();
  if (std::ssize(parts) != group.size()) throw std::runtime_error("parts are missing");
  for (int rank = 0; rank < group.size(); ++rank)
    if (parts[static_cast<std::size_t>(rank)] != text_of(rank, number))
      throw std::runtime_error("post " + std::to_string(number) + " of rank " + std::to_string(rank) +
                               " came as '" + parts[static_cast<std::size_t>(rank)] + "'");
}

void post_some(RankGroup& group, int first, int count) {
  for (int number = first; number < first + count; ++number) group.post(text_of(group.rank(), number));
}

void check_quiet(const std::vector<Meeting>& meetings) {
  for (const Meeting& meeting : meetings) {
    INFO("rank " << meeting.rank);
    CHECK(meeting.error.empty());
    CHECK(meeting.said.empty());
    CHECK(meeting.failures.empty());
  }
}

// Rank 1 of 2: after the welcome it sends these bytes, and waits until rank 0 has closed the connection.
void send_as_rank_1(int port, const std::string& bytes) {
  Hello hello;
  hello.job = "job";
  hello.size = 2;
  hello.peer = own_peer();
  hello.peer.rank = 1;
  hello.fields = {{"commit", "abc"}};
  const int socket = test::connect_to(port);
  char answer[4096];
  for (const std::string& part : {frame(Kind::hello, encode(hello)), bytes})
    if (::send(socket, part.data(), part.size(), MSG_NOSIGNAL) < 0 ||
        ::recv(socket, answer, sizeof answer, 0) <= 0)
      break;
  while (::recv(socket, answer, sizeof answer, 0) > 0) continue;
  ::close(socket);
}

}  // namespace

TEST_CASE("posts: every rank collects those of all in their order, whatever is gathered meanwhile") {
  const auto meetings = run_ranks(ranks_of(4), [](RankGroup& group) {
    std::thread poster([&] {
      for (int number = 0; number < 60; ++number) {
        group.post(text_of(group.rank(), number));
        if (number % 7 == group.rank()) std::this_thread::sleep_for(1ms);
      }
    });
    std::exception_ptr error;
    try {
      for (int number = 0; number < 60; ++number) {
        if (group.rank() % 2) collect_and_check(group, number);
        if (number % 3 == 0 && group.gather("step", text_of(group.rank(), number))[3] != text_of(3, number))
          throw std::runtime_error("a gathered part is wrong");
        if (group.rank() % 2 == 0) collect_and_check(group, number);
      }
    } catch (...) {
      error = std::current_exception();
    }
    poster.join();
    if (error) std::rethrow_exception(error);
    group.finish();
  });
  check_quiet(meetings);
}

TEST_CASE("posts: a rank may be most_ahead posts ahead of the others and no more") {
  const int first = GENERATE(0, 2);
  const int most = static_cast<int>(most_ahead);
  std::atomic<int> refused = 0;
  const auto meetings = run_ranks(ranks_of(3), [&](RankGroup& group) {
    if (group.rank() == first) {
      post_some(group, 0, most);
      try {
        group.post("one more");
      } catch (const std::logic_error&) {
        ++refused;
      }
    }
    group.gather("the first is ahead", "");
    if (group.collectable()) throw std::runtime_error("collectable too early");
    group.gather("all have looked", "");
    if (group.rank() != first) post_some(group, 0, most);
    for (int number = 0; number < most; ++number) collect_and_check(group, number);
    post_some(group, most, 1);
    collect_and_check(group, most);
    group.finish();
  });
  check_quiet(meetings);
  CHECK(refused == 1);
}

TEST_CASE("posts: a rank that ends or fails ends those that wait for its posts") {
  const int culprit = GENERATE(0, 1, 2);
  const bool tells = GENERATE(false, true);
  const auto before = std::chrono::steady_clock::now();
  const auto meetings = run_ranks(ranks_of(3), [&](RankGroup& group) {
    post_some(group, 0, 2);
    group.collect();
    group.collect();
    group.gather("step", "");
    if (group.rank() == culprit) return tells ? group.fail("shard_7.bin is damaged", 3) : void();
    post_some(group, 2, 1);
    group.collect();
  });
  CHECK(std::chrono::steady_clock::now() - before < 3s);
  std::vector<Meeting> others;
  for (const Meeting& meeting : meetings)
    if (meeting.rank != culprit) others.push_back(meeting);
  const std::string cause = tells ? "shard_7.bin is damaged" : "has ended";
  check_failed(others, culprit, tells ? 3 : 1, {"rank " + std::to_string(culprit) + " (host ", cause});
  for (const Meeting& meeting : others) CHECK_THAT(meeting.error, ContainsSubstring(cause));  // RunFailed
}

TEST_CASE("posts: what nobody collects is no obstacle to the end, and nothing is waited for after it") {
  std::atomic<int> refused = 0;
  const auto meetings = run_ranks(ranks_of(3), [&](RankGroup& group) {
    post_some(group, 0, 1 + 2 * group.rank());
    group.finish();
    post_some(group, 1 + 2 * group.rank(), 1);  // a reader that does not know yet
    if (group.rank() != 1) return;
    collect_and_check(group, 0);
    try {
      while (true) group.collect();
    } catch (const std::logic_error&) {
      ++refused;
    }
  });
  check_quiet(meetings);
  CHECK(refused == 1);
}

TEST_CASE("posts: one rank has neither a thread nor a connection for them") {
  const auto before = test::threads_and_sockets();
  RankGroup group(Launch{}, {});
  for (int round = 0; round < 3; ++round) {
    post_some(group, 0, 64);
    CHECK(group.collectable());
    CHECK_THROWS_AS(group.post("one more"), std::logic_error);
    for (int number = 0; number < 64; ++number) CHECK(group.collect() == std::vector{text_of(0, number)});
    CHECK_FALSE(group.collectable());
  }
  const auto after = test::threads_and_sockets();
  CHECK(after.first <= before.first);
  CHECK(after.second == before.second);
  group.finish();
  CHECK_THROWS_AS(group.collect(), std::logic_error);
  CHECK_THROWS_AS(group.post(std::string(most_posted + 1, 'x')), std::length_error);
}

TEST_CASE("posts: a rank that sends them wrongly, or blames a rank that is not there, is named") {
  std::string bytes, said;
  SECTION("out of order") {
    bytes = frame(Kind::post, encode(Post{0, ""})) + frame(Kind::post, encode(Post{2, ""}));
    said = "sent a post out of order";
  }
  SECTION("too many") {
    for (std::uint64_t number = 0; number <= most_ahead; ++number)
      bytes += frame(Kind::post, encode(Post{number, ""}));
    said = "sent more posts than are allowed";
  }
  SECTION("those of all ranks") {
    bytes = frame(Kind::posts, encode(Collection{0, {"", ""}}));
    said = "sent a message that is not expected here";
  }
  SECTION("a failure") {
    bytes = frame(Kind::failure, encode(Failure{2, "why", 1}));
    said = "sent a failure of no rank";
  }
  const std::vector<RankSetup> setups = ranks_of(2);
  std::thread sender([&] { send_as_rank_1(setups[0].launch.port, bytes); });
  const auto meetings = run_ranks({setups[0]}, [](RankGroup& group) { group.collect(); });
  sender.join();
  check_failed(meetings, 1, 1, {"rank 1 (host ", said});
}

TEST_CASE("rank group: a rank that waits for a lost one tells of it and is not blamed itself") {
  const int teller = GENERATE(0, 1, 2), culprit = (teller + 1) % 3;
  std::vector<RankSetup> setups = ranks_of(3);
  for (RankSetup& setup : setups) setup.options.verdict_time = 200ms;
  const auto before = std::chrono::steady_clock::now();
  const auto meetings = run_ranks(setups, [teller, culprit](RankGroup& group) {
    if (group.rank() == teller) group.lost(culprit, "it is stopped");
    group.gather("step", "");
  });
  CHECK(std::chrono::steady_clock::now() - before >= 200ms);
  check_failed(meetings, culprit, 1, {"rank " + std::to_string(culprit) + " (host ", "): it is stopped"});
}

TEST_CASE("rank group: a rank that does not know who is lost tells of itself, where no cause is found") {
  std::vector<RankSetup> setups = ranks_of(3);
  for (RankSetup& setup : setups) setup.options.verdict_time = 200ms;
  const auto before = std::chrono::steady_clock::now();
  const auto meetings = run_ranks(setups, [](RankGroup& group) {
    if (group.rank() == 1) group.lost(-1, "another rank has ended");
    group.gather("step", "");
  });
  CHECK(std::chrono::steady_clock::now() - before >= 200ms);
  check_failed(meetings, 1, 1, {"rank 1 (host ", "): another rank has ended"});
}

TEST_CASE("rank group: what a lost rank says itself counts more than that it is lost") {
  const int lost = GENERATE(2, -1);  // -1: not known
  const auto before = std::chrono::steady_clock::now();
  const auto meetings = run_ranks(ranks_of(3), [lost](RankGroup& group) {
    if (group.rank() == 1) group.lost(lost, "it is lost");
    if (group.rank() == 2) {
      std::this_thread::sleep_for(300ms);
      group.fail("its data are damaged", 3);
    }
    group.gather("step", "");
  });
  CHECK(std::chrono::steady_clock::now() - before < 4s);  // less than verdict_time
  check_failed(meetings, 2, 3, {"rank 2 (host ", "its data are damaged"});
  for (const Meeting& meeting : meetings) CHECK(meeting.said.find("it is lost") == std::string::npos);
}

TEST_CASE("rank group: a lost rank that does not exist makes the failure one's own") {
  for (const int lost : {-1, 0, 1}) {
    const auto meetings = run_ranks({{Launch{}}}, [lost](RankGroup& group) { group.lost(lost, "why"); });
    check_failed(meetings, 0, 1, {"why"});
  }
}
