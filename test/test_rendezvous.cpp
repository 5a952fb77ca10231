// Ranks that meet over TCP, here threads of one process: who belongs together, who is refused and told why,
// and strangers on the port.

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "test/catch.h"
#include "test/rank_threads.h"
#include "train/ranks/ranks_error.h"

using namespace goat;
using namespace std::chrono_literals;
using goat::test::connect_to;
using goat::test::launch_of_rank;
using goat::test::meet;
using goat::test::Meeting;
using goat::test::ranks_of;
using goat::test::RankSetup;

namespace {

// All ranks end, with messages that hold these words.
void check_refused(const std::vector<Meeting>& meetings, const std::vector<std::string>& words, int code) {
  for (const Meeting& meeting : meetings) {
    INFO("rank " << meeting.rank);
    CHECK_FALSE(meeting.met);
    CHECK(meeting.code == code);
    for (const std::string& word : words) CHECK_THAT(meeting.error, ContainsSubstring(word));
  }
}

void send_to(int socket, const std::string& bytes) {
  CHECK(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

// Whether the other side closes the connection within two seconds.
bool is_dropped(int socket) {
  const timeval patience{2, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  char bytes[4096];
  ssize_t count = 0;
  while ((count = ::recv(socket, bytes, sizeof bytes, 0)) > 0) {
  }
  return count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

}  // namespace

TEST_CASE("rendezvous: ranks meet in any order and know each other, hosts and places on them") {
  std::vector<RankSetup> setups = ranks_of(4);
  setups[0].late = 150ms;  // the others are there first
  setups[2].late = 50ms;
  for (int rank = 0; rank < 4; ++rank)
    setups[static_cast<std::size_t>(rank)].options.self = {0, rank % 2 ? "b" : "a", "boot", 100 + rank, 0, 0};
  for (const Meeting& meeting : meet(setups)) {
    INFO(meeting.error);
    REQUIRE(meeting.met);
    REQUIRE(meeting.peers.size() == 4);
    for (int rank = 0; rank < 4; ++rank) {
      const Peer& peer = meeting.peers[static_cast<std::size_t>(rank)];
      CHECK((peer.rank == rank && peer.pid == 100 + rank && peer.node == rank % 2 &&
             peer.local_rank == rank / 2));
    }
  }
}

TEST_CASE("rendezvous: a difference ends all ranks, which name the rank, the field and both values") {
  std::vector<RankSetup> setups = ranks_of(3);
  for (RankSetup& setup : setups) setup.fields = {{"commit", "abc"}, {"config", "[train]\nlr = 0.1\n"}};
  setups[2].fields[1].value = "[train]\nlr = 0.2\n";
  check_refused(meet(setups), {"rank 0", "rank 2", "config", "line 2 [train]", "'lr = 0.1'", "'lr = 0.2'"},
                2);
}

TEST_CASE("rendezvous: those that come after a refusal are told the reason too") {
  std::vector<RankSetup> setups = ranks_of(3);
  setups[1].fields = {{"commit", "def"}};
  setups[2].late = 300ms;
  check_refused(meet(setups), {"rank 1", "commit"}, 2);
}

TEST_CASE("rendezvous: two processes with one rank, another size, a rank out of range: all end") {
  std::vector<RankSetup> setups = ranks_of(3);
  SECTION("twice") {
    setups[2].launch.rank = 1;
    check_refused(meet(setups), {"same rank", "rank 1"}, 2);
  }
  SECTION("size") {
    setups[2].launch.size = 4;
    check_refused(meet(setups), {"rank 2", "one of 4 ranks", "one of 3"}, 2);
  }
  SECTION("range") {
    setups[2].launch.rank = 3;
    check_refused(meet(setups), {"rank 3", "out of range", "3 ranks"}, 2);
  }
}

TEST_CASE("rendezvous: a rank that does not come is named everywhere, and announced before") {
  std::vector<RankSetup> setups = ranks_of(3);
  setups.pop_back();
  for (RankSetup& setup : setups) {
    setup.options.start_timeout = 700ms;
    setup.options.announce_interval = 200ms;
  }
  const std::vector<Meeting> meetings = meet(setups);
  check_refused(meetings, {"rank 2 of 3", "did not come within"}, 1);
  CHECK_THAT(meetings[0].said, ContainsSubstring("waits for rank 2 of 3 at port"));
  CHECK_THAT(meetings[1].said, ContainsSubstring("waits for rank 0 at 127.0.0.1:") &&
                                   ContainsSubstring("it has not all ranks yet"));
}

TEST_CASE("rendezvous: where rank 0 does not come the others say where they looked") {
  std::vector<RankSetup> setups = ranks_of(2);
  setups.erase(setups.begin());
  setups[0].options.start_timeout = 600ms;
  setups[0].options.announce_interval = 250ms;
  const std::vector<Meeting> meetings = meet(setups);
  check_refused(meetings, {"rank 1", "rank 0 at 127.0.0.1:", "did not answer", "Connection refused"}, 1);
  CHECK_THAT(meetings[0].said,
             ContainsSubstring("waits for rank 0 at 127.0.0.1:") && ContainsSubstring("Connection refused"));
}

TEST_CASE("rendezvous: a busy port is named, and what answers there is no rank 0") {
  std::vector<RankSetup> setups = ranks_of(2);
  const goat::test::PortHolder holder(setups[0].launch.port);
  std::thread stranger([&] { holder.answer_once("HTTP/1.1 400 Bad Request\r\n\r\n"); });
  const std::vector<Meeting> meetings = meet(setups);
  stranger.join();
  for (const Meeting& meeting : meetings) CHECK((!meeting.met && meeting.code == 1));
  CHECK_THAT(meetings[0].error, ContainsSubstring(std::to_string(setups[0].launch.port)) &&
                                    ContainsSubstring("in use") && ContainsSubstring("MASTER_PORT"));
  CHECK_THAT(meetings[1].error,
             ContainsSubstring("not a message of this program") && ContainsSubstring("is that rank 0"));
}

TEST_CASE("rendezvous: a rank of another job is told so, and the run goes on without it") {
  std::vector<RankSetup> setups = ranks_of(2);
  RankSetup other{launch_of_rank(1, 2, setups[0].launch.port)};
  other.launch.job = "another";
  setups[1].late = 300ms;
  setups.push_back(other);
  const std::vector<Meeting> meetings = meet(setups);
  CHECK(meetings[0].met);
  CHECK(meetings[1].met);
  check_refused({meetings[2]}, {"belongs to job 'job'", "this is job 'another'", "MASTER_PORT"}, 2);
}

TEST_CASE("rendezvous: strangers are dropped whatever they send, and hold nobody up") {
  const std::vector<RankSetup> setups = ranks_of(2);
  const int port = setups[0].launch.port;
  std::vector<Meeting> first;
  std::thread rank0([&] { first = meet({setups[0]}); });
  const std::string hello = encode(Hello{});
  const std::string header = frame(Kind::hello, hello).substr(0, header_bytes);
  std::vector<int> silent, wrong;
  for (int i = 0; i < 300; ++i) silent.push_back(connect_to(port));  // more than are kept
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100, '\0'), frame(Kind::beat, "x"),
        frame(Kind::hello, std::string(1000, 'x')), frame(Kind::collection, ""), frame(Kind::hello, "")}) {
    wrong.push_back(connect_to(port));
    send_to(wrong.back(), bytes);
  }
  const int half = connect_to(port), gone = connect_to(port);
  send_to(half, header + hello.substr(0, 5));
  send_to(gone, header);
  ::close(gone);
  for (const int socket : wrong) CHECK(is_dropped(socket));
  CHECK(is_dropped(silent.front()));  // the oldest
  const auto before = std::chrono::steady_clock::now();
  const std::vector<Meeting> second = meet({setups[1]});
  CHECK(std::chrono::steady_clock::now() - before < 2s);
  rank0.join();
  CHECK(first[0].met);
  CHECK(second[0].met);
  CHECK_THAT(first[0].said, ContainsSubstring("dropped a connection from 127.0.0.1:"));
  CHECK(std::count(first[0].said.begin(), first[0].said.end(), '\n') < 10);
  for (const int socket : silent) ::close(socket);
  for (const int socket : wrong) ::close(socket);
  ::close(half);
}

TEST_CASE("rendezvous: a connection that says nothing is dropped after hello_timeout") {
  std::vector<RankSetup> setups = ranks_of(2);
  setups[0].options.hello_timeout = 200ms;
  setups[1].late = 600ms;
  bool dropped = false;
  std::thread stranger([&, port = setups[0].launch.port] {
    const int socket = connect_to(port);
    dropped = is_dropped(socket);
    ::close(socket);
  });
  const std::vector<Meeting> meetings = meet(setups);
  stranger.join();
  CHECK(dropped);
  CHECK((meetings[0].met && meetings[1].met));
  CHECK_THAT(meetings[0].said, ContainsSubstring("said nothing"));
}

TEST_CASE("rendezvous: a rank of another protocol is told both") {
  const std::vector<RankSetup> setups = ranks_of(2);
  std::vector<Meeting> first;
  std::thread rank0([&] { first = meet({setups[0]}); });
  std::string hello = encode(Hello{});
  hello[0] = 9;
  const int socket = connect_to(setups[0].launch.port);
  send_to(socket, frame(Kind::hello, hello));
  std::string answer(4096, '\0');
  const ssize_t count = ::recv(socket, answer.data(), answer.size(), 0);
  answer.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  CHECK_THAT(answer, ContainsSubstring("protocol 9") && ContainsSubstring("protocol 2"));
  CHECK(meet({setups[1]})[0].met);
  rank0.join();
  ::close(socket);
}
