// What ranks tell each other: bytes that are read again, refusals of what is none, the comparison of ranks,
// and the judgement of their heartbeats.

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "test/catch.h"
#include "train/ranks/hello_check.h"
#include "train/ranks/judge.h"
#include "train/ranks/wire.h"

using namespace goat;
using std::chrono::milliseconds;

namespace {

Hello hello_of(int rank, int size = 4) {
  Hello hello;
  hello.job = "7.0";
  hello.size = size;
  hello.peer = {rank, "host" + std::to_string(rank / 2), "boot", 100 + rank, 0, 0};
  hello.fields = {{"commit", "abc"},
                  {"config", "[train]\nlr = 0.001\nsteps = 10\n[model]\nwidth = 64\n"},
                  {"GPU", "GPU-" + std::to_string(rank), Field::Rule::distinct}};
  return hello;
}

std::string reason(const Hello& hello, const std::vector<const Hello*>& before) {
  const auto failure = why_not(hello, before);
  return failure ? failure->reason : "";
}

// Every beginning of a body, and a body with more behind it, is refused.
template <class Decode>
void check_bounds(const std::string& body, Decode decode) {
  for (std::size_t size = 0; size < body.size(); ++size)
    CHECK_THROWS_AS(decode(body.substr(0, size)), WireError);
  CHECK_THROWS_AS(decode(body + '\0'), WireError);
}

}  // namespace

TEST_CASE("rank messages: every message is read as it was written, and nothing that is cut or longer") {
  Hello hello = hello_of(3);
  hello.peer.pid = -5;
  const std::string text = encode(hello);
  const Hello again = decode_hello(text);
  CHECK(encode(again) == text);
  CHECK(again.peer.rank == 3);
  CHECK(again.fields[2].rule == Field::Rule::distinct);
  check_bounds(text, decode_hello);

  const Beat beat{-7, "save", true, 1ULL << 40, 12};
  CHECK(decode_beat(encode(beat)) == beat);
  check_bounds(encode(beat), decode_beat);

  const Contribution part =
      decode_contribution(encode(Contribution{5, "vote", 1000, std::string("a\0b", 3)}));
  CHECK((part.number == 5 && part.what == "vote" && part.limit_ms == 1000));
  CHECK(part.bytes == std::string("a\0b", 3));
  check_bounds(encode(part), decode_contribution);

  const Collection all = decode_collection(encode(Collection{6, {"", "x", "yy"}}));
  CHECK((all.number == 6 && all.parts == std::vector<std::string>{"", "x", "yy"}));
  check_bounds(encode(all), decode_collection);

  const Post post = decode_post(encode(Post{1ULL << 40, std::string("a\0b", 3)}));
  CHECK((post.number == 1ULL << 40 && post.bytes == std::string("a\0b", 3)));
  check_bounds(encode(post), decode_post);
  CHECK(decode_post(encode(Post{0, std::string(most_posted, 'x')})).bytes.size() == most_posted);
  CHECK_THROWS_AS(decode_post(encode(Post{0, std::string(most_posted + 1, 'x')})), WireError);

  const Failure failure = decode_failure(encode(Failure{-1, "why", 3}));
  CHECK((failure.rank == -1 && failure.reason == "why" && failure.code == 3));
  check_bounds(encode(failure), decode_failure);
  CHECK(decode_failure(encode(Failure{1, std::string(1 << 20, 'x'), 3})).reason.size() == 1 << 14);
  CHECK_THROWS_AS(decode_failure(encode(Failure{1, "why", 0})), WireError);  // no failure ends with success
  CHECK_THROWS_AS(decode_failure(encode(Failure{1, "why", 256})), WireError);
}

TEST_CASE("rank messages: the header tells the kind and a size within the limit of its kind") {
  const std::string text = frame(Kind::beat, "12345");
  REQUIRE(text.size() == header_bytes + 5);
  const Header header = decode_header(text.substr(0, header_bytes));
  CHECK((header.kind == Kind::beat && header.bytes == 5));
  const auto changed = [&](std::size_t at, char value) {
    std::string wrong = text.substr(0, header_bytes);
    wrong[at] = value;
    return wrong;
  };
  CHECK_THROWS_AS(decode_header("GET / HTTP/1"), WireError);
  CHECK_THROWS_AS(decode_header(changed(4, 0)), WireError);  // kinds begin with 1
  CHECK_THROWS_AS(decode_header(changed(4, 10)), WireError);
  CHECK_THROWS_AS(decode_header(changed(9, 3)), WireError);  // a beat of 773 bytes
  CHECK_THROWS_AS(frame(Kind::post, std::string(most_posted + 65, 'x')), std::length_error);
  CHECK_THROWS_AS(decode_header(changed(11, 127)), WireError);
  CHECK_THROWS_AS(frame(Kind::hello, std::string((1 << 20) + 1, 'x')), std::length_error);
}

TEST_CASE("rank messages: another protocol is named, whatever follows its number") {
  std::string other = encode(hello_of(0));
  other[0] = 9;
  CHECK_THROWS_WITH(decode_hello(other), ContainsSubstring("protocol 9") && ContainsSubstring("protocol 2"));
}

TEST_CASE("rank messages: a count or a length that the bytes do not hold reserves nothing") {
  std::string text = encode(Collection{1, {}});
  text[8] = text[9] = static_cast<char>(0xff);  // 65,535 parts
  CHECK_THROWS_WITH(decode_collection(text), ContainsSubstring("too long"));
  std::string hello = encode(hello_of(0));
  hello[7] = 127;  // the length of the job's name
  CHECK_THROWS_WITH(decode_hello(hello), ContainsSubstring("too long"));
}

TEST_CASE("rank messages: random changes are read or refused") {
  std::mt19937 random(std::random_device{}());
  const std::string good = encode(hello_of(1));
  for (int trial = 0; trial < 2000; ++trial) {
    std::string bytes = good;
    for (int change = 0; change < 3; ++change) bytes[random() % bytes.size()] = static_cast<char>(random());
    std::string again = bytes;
    try {
      again = encode(decode_hello(bytes));
    } catch (const WireError&) {
    }
    CHECK(again == bytes);
  }
}

TEST_CASE("hello check: ranks that belong together pass, each difference is named with ranks and values") {
  const Hello first = hello_of(0), second = hello_of(1);
  const std::vector<const Hello*> before{&first, &second};
  CHECK(reason(hello_of(2), before).empty());

  CHECK_THAT(reason(hello_of(1), before), ContainsSubstring("same rank") && ContainsSubstring("pid 101"));
  CHECK_THAT(reason(hello_of(4), before), ContainsSubstring("rank 4") && ContainsSubstring("out of range"));
  CHECK_THAT(reason(hello_of(-1), before), ContainsSubstring("out of range"));
  CHECK_THAT(reason(hello_of(2, 8), before),
             ContainsSubstring("rank 2 (host host1, pid 102) is one of 8") && ContainsSubstring("one of 4"));

  Hello other = hello_of(2);
  other.fields[0].value = "def";
  CHECK(reason(other, before) ==
        "rank 0 (host host0, pid 100) and rank 2 (host host1, pid 102) differ in commit: rank 0 has 'abc', "
        "rank 2 "
        "has 'def'");
  other = hello_of(2);
  other.fields.erase(other.fields.begin());
  CHECK_THAT(reason(other, before),
             ContainsSubstring("rank 2") && ContainsSubstring("does not tell its commit"));
  other = hello_of(2);
  other.fields.push_back({"NCCL", "2.28"});
  CHECK_THAT(reason(other, before),
             ContainsSubstring("rank 0") && ContainsSubstring("does not tell its NCCL"));

  other = hello_of(2);
  other.fields[2].value = "GPU-1";
  CHECK_THAT(reason(other, before), ContainsSubstring("rank 1") && ContainsSubstring("rank 2") &&
                                        ContainsSubstring("the same GPU: 'GPU-1'"));
  Hello none = hello_of(0), none_too = hello_of(1);
  none.fields[2].value = none_too.fields[2].value = "";  // ranks of the cpu
  CHECK(reason(none_too, {&none}).empty());
}

TEST_CASE("hello check: of a text of several lines the first that differs is shown, with its section") {
  const std::string config = "[train]\nlr = 0.001\n[model]\nwidth = 64\nheads = 2\n";
  const auto shown = [&](const std::string& other) { return difference(config, other, "rank 0", "rank 1"); };
  CHECK(shown("[train]\nlr = 0.001\n[model]\nwidth = 32\nheads = 2\n") ==
        "line 4 [model], rank 0 has 'width = 64', rank 1 has 'width = 32'");
  CHECK(shown("[train]\nlr = 0.002\n") == "line 2 [train], rank 0 has 'lr = 0.001', rank 1 has 'lr = 0.002'");
  CHECK(shown("[train]\nlr = 0.001\n[model]\nwidth = 64\n") ==
        "line 5 [model], rank 0 has 'heads = 2', rank 1 has no such line");
  CHECK(difference("a", "", "rank 0", "rank 1") == "rank 0 has 'a', rank 1 has nothing");
  CHECK(difference(std::string(500, 'a'), "b", "0", "1").size() < 250);
}

TEST_CASE("peers: hosts are told apart by name and boot, and numbered as their first ranks are") {
  std::vector<Peer> peers;
  for (const auto& [host, boot] : std::vector<std::pair<std::string, std::string>>{
           {"b", "1"}, {"a", "2"}, {"b", "1"}, {"b", "3"}, {"a", "2"}})
    peers.push_back({static_cast<int>(peers.size()), host, boot, 1, 0, 0});
  number_nodes(peers);
  std::vector<int> nodes, local;
  for (const Peer& peer : peers) {
    nodes.push_back(peer.node);
    local.push_back(peer.local_rank);
  }
  CHECK(nodes == std::vector<int>{0, 1, 0, 2, 1});
  CHECK(local == std::vector<int>{0, 0, 1, 0, 1});
  CHECK(list_of({3}) == "rank 3");
  CHECK(list_of({7, 1, 2, 3, 9, 10}) == "ranks 1-3, 7, 9, 10");
}

namespace {

struct Watched {
  Judge::Time now = Judge::Time() + std::chrono::hours(1);
  Judge judge;

  explicit Watched(int ranks = 3) : judge(peers(ranks), limits(), now) {}

  static std::vector<Peer> peers(int ranks) {
    std::vector<Peer> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back({rank, "h", "b", 10 + rank, 0, 0});
    return all;
  }
  static RankLimits limits() {
    return {milliseconds(1000), milliseconds(30'000), milliseconds(600'000), milliseconds(3600'000)};
  }
  // `seconds` of heartbeats; ranks in `mute` send none. The beats say `beat`.
  void pass(int seconds, const std::vector<int>& mute = {}, Beat beat = {}, bool moving = false) {
    for (int second = 0; second < seconds; ++second) {
      now += milliseconds(1000);
      for (int rank = 0; rank < 3; ++rank) {
        if (moving) ++beat.finished;
        if (std::find(mute.begin(), mute.end(), rank) == mute.end()) judge.report(rank, beat, now);
      }
      judge.tick(now);
    }
  }
};

const Beat training{7, "train", false, 13, 12};

}  // namespace

TEST_CASE("judge: a rank is silent after heartbeat_timeout and not before") {
  Watched watched;
  watched.pass(30, {1}, training);
  CHECK_FALSE(watched.judge.silent(1, watched.now));
  watched.pass(1, {1}, training);
  const auto failure = watched.judge.silent(1, watched.now);
  REQUIRE(failure);
  CHECK(failure->rank == 1);
  CHECK_THAT(failure->reason, ContainsSubstring("rank 1 (host h, pid 11)") && ContainsSubstring("for 30 s"));
  CHECK_FALSE(watched.judge.silent(2, watched.now));
}

TEST_CASE(
    "judge: without progress of any rank for progress_timeout the run is stuck, and those behind are named") {
  Watched watched;
  watched.pass(100, {}, training, true);
  watched.pass(1, {}, training);
  Beat behind = training;
  behind.enqueued = 12;
  watched.judge.report(2, behind, watched.now);
  for (int second = 0; second < 600; ++second) {
    watched.now += milliseconds(1000);
    for (int rank = 0; rank < 3; ++rank)
      watched.judge.report(rank, rank == 2 ? behind : training, watched.now);
    watched.judge.tick(watched.now);
  }
  CHECK_FALSE(watched.judge.stuck(watched.now));
  const auto failure = watched.judge.stuck(watched.now + milliseconds(1));
  REQUIRE(failure);
  CHECK(failure->rank == 2);
  CHECK_THAT(failure->reason,
             ContainsSubstring("rank 1 (host h, pid 11) step 7, train, collective 12 of 13"));
  CHECK_THAT(failure->reason, ContainsSubstring("rank 2 is behind"));
}

TEST_CASE("judge: where all are at the same place nobody is accused") {
  Watched watched;
  watched.pass(602, {}, training);
  const auto failure = watched.judge.stuck(watched.now);
  REQUIRE(failure);
  CHECK(failure->rank == -1);
  CHECK(failure->reason.find("behind") == std::string::npos);
}

TEST_CASE("judge: one rank in a phase that may take long gives all of them the long limit") {
  Watched watched;
  Beat save = training;
  save.phase = "save";
  save.may_take_long = true;
  watched.pass(1, {}, training);
  for (int second = 0; second < 3600; ++second) {
    watched.now += milliseconds(1000);
    for (int rank = 0; rank < 3; ++rank) watched.judge.report(rank, rank == 1 ? save : training, watched.now);
    watched.judge.tick(watched.now);
  }
  CHECK_FALSE(watched.judge.stuck(watched.now));
  CHECK(watched.judge.stuck(watched.now + milliseconds(2000)));
}

TEST_CASE("judge: a process that was stopped for long accuses nobody and starts its limits anew") {
  Watched watched;
  watched.pass(5, {}, training);
  watched.now += std::chrono::hours(2);
  CHECK(watched.judge.tick(watched.now));
  for (int rank = 1; rank < 3; ++rank) {
    watched.judge.heard(rank, watched.now - std::chrono::hours(2));  // its last byte is older than the stop
    CHECK_FALSE(watched.judge.silent(rank, watched.now));
  }
  CHECK_FALSE(watched.judge.stuck(watched.now));
  watched.pass(30, {1}, training);
  CHECK_FALSE(watched.judge.silent(1, watched.now));
  watched.pass(1, {1}, training);
  CHECK(watched.judge.silent(1, watched.now));  // it counts again
}
