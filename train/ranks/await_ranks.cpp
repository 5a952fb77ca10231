// Rank 0's side of the rendezvous.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <asio/ip/v6_only.hpp>
#include <asio/steady_timer.hpp>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "train/ranks/hello_check.h"
#include "train/ranks/ranks_error.h"
#include "train/ranks/rendezvous.h"

namespace goat {

namespace {

using asio::ip::tcp;
constexpr std::size_t most_visitors = 256;  // connections that have not said who they are, beside the ranks
constexpr int most_notes = 5;

// Held by its own pending calls, which come after over_ too.
class Awaiting : public std::enable_shared_from_this<Awaiting> {
 public:
  Awaiting(asio::io_context& io, const Launch& launch, const Hello& hello, const RendezvousOptions& options)
      : io_(io),
        launch_(launch),
        options_(options),
        acceptor_(io),
        deadline_(io, options.start_timeout),
        announce_(io),
        pause_(io),
        hellos_(static_cast<std::size_t>(launch.size)) {
    hellos_[0] = hello;
    meeting_.connections.resize(hellos_.size());
  }

  Meeting run() {
    listen();
    accept();
    announce();
    end_after(options_.start_timeout, [this] { time_is_up(); });
    io_.restart();
    io_.run();
    over_ = true;
    std::error_code ignored;
    acceptor_.close(ignored);
    for (asio::steady_timer* timer : {&deadline_, &announce_, &pause_}) timer->cancel();
    for (auto& [number, visitor] : visitors_) visitor.connection->close();
    visitors_.clear();
    for (const auto& connection : late_) connection->close();
    if (!failure_) return std::move(meeting_);
    for (const auto& connection : meeting_.connections)
      if (connection) connection->close();
    throw RanksError(failure_->reason, failure_->code);
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Visitor {
    std::shared_ptr<Connection> connection;
    std::unique_ptr<asio::steady_timer> patience;
  };

  void listen() {
    std::error_code error;
    if (launch_.listening >= 0) {
      tcp::acceptor::protocol_type protocol = tcp::v4();
      int listens = 0;
      socklen_t length = sizeof listens;
      if (::getsockopt(launch_.listening, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || !listens)
        throw RanksError("GOAT_LISTENING=" + std::to_string(launch_.listening) + " is no listening socket",
                         2);
      acceptor_.assign(protocol, launch_.listening, error);
    } else {
      listen_anew(error);
    }
    if (error)
      throw RanksError(name_of(hellos_[0]->peer) + " cannot listen on port " + std::to_string(launch_.port) +
                       ": " + error.message() +
                       (error == asio::error::address_in_use
                            ? "; another program has it: export MASTER_PORT=PORT with a free one in all ranks"
                            : ""));
    std::error_code ignored;
    acceptor_.non_blocking(true, ignored);
    ::fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
  }

  void listen_anew(std::error_code& error) {
    const auto port = static_cast<unsigned short>(launch_.port);
    const bool loopback = launch_.address == "127.0.0.1" || launch_.address == "localhost";
    tcp::endpoint place =
        loopback ? tcp::endpoint(asio::ip::address_v4::loopback(), port) : tcp::endpoint(tcp::v6(), port);
    if (acceptor_.open(place.protocol(), error); error && !loopback) {
      place = tcp::endpoint(tcp::v4(), port);  // a kernel without IPv6
      acceptor_.open(place.protocol(), error);
    }
    if (error) return;
    std::error_code ignored;
    acceptor_.set_option(tcp::acceptor::reuse_address(true), ignored);
    if (place.protocol() == tcp::v6()) acceptor_.set_option(asio::ip::v6_only(false), ignored);
    acceptor_.bind(place, error);
    if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
  }

  void accept() {
    acceptor_.async_accept([self = shared_from_this()](const std::error_code& error, tcp::socket socket) {
      if (self->over_ || error == asio::error::operation_aborted) return;
      if (!error) {
        self->receive(std::make_shared<Connection>(std::move(socket)));
        return self->accept();
      }
      self->pause_.expires_after(std::chrono::milliseconds(100));  // no descriptors left, for instance
      self->pause_.async_wait([self](const std::error_code&) {
        if (!self->over_) self->accept();
      });
    });
  }

  void receive(const std::shared_ptr<Connection>& connection) {
    if (visitors_.size() >= most_visitors + hellos_.size()) drop(visitors_.begin()->first, "said nothing");
    const std::uint64_t number = ++visits_;
    auto patience = std::make_unique<asio::steady_timer>(io_, options_.hello_timeout);
    patience->async_wait([self = shared_from_this(), number](const std::error_code& error) {
      if (!error && !self->over_ && self->visitors_.contains(number)) self->drop(number, "said nothing");
    });
    connection->handle({{Kind::hello},
                        [this, number](Kind, const std::string& body) { read_hello(number, body); },
                        [this, number](const std::string& violation) {
                          drop(number, violation.empty() ? "left without a word" : violation);
                        }});
    visitors_[number] = {connection, std::move(patience)};
    connection->start();
  }

  // What is no rank of this program is dropped, whatever it sends; the ranks do not wait for it.
  void drop(std::uint64_t number, const std::string& why) {
    const auto connection = visitors_.at(number).connection;
    visitors_.erase(number);
    connection->close();
    if (notes_++ < most_notes)
      options_.say("note: dropped a connection from " + connection->address() +
                   ", which is no rank of this run: " + why);
  }

  void read_hello(std::uint64_t number, const std::string& body) {
    const auto connection = visitors_.at(number).connection;
    visitors_.erase(number);
    try {
      judge(connection, decode_hello(body));
    } catch (const WireError& wrong) {
      turn_away(connection, {-1, std::string("this rank speaks ") + wrong.what(), 2}, connection->address());
    }
  }

  void judge(const std::shared_ptr<Connection>& connection, const Hello& hello) {
    const Hello& own = *hellos_[0];
    if (hello.job != own.job)
      return turn_away(
          connection,
          {-1,
           "port " + std::to_string(launch_.port) + " of " + own.peer.host + " belongs to job '" + own.job +
               "', this is job '" + hello.job + "': export another MASTER_PORT in all ranks",
           2},
          name_of(hello.peer) + " of job '" + hello.job + "'");
    if (failure_) return refuse(connection, hello.peer.rank);
    std::vector<const Hello*> before;
    for (const auto& other : hellos_)
      if (other) before.push_back(&*other);
    auto failure = why_not(hello, before);
    if (!failure) return welcome(connection, hello);
    fail(std::move(*failure));
    // Of two processes that are the same rank, this is not the one that was counted.
    const bool twice = hello.size == own.size && hello.peer.rank >= 0 && hello.peer.rank < own.size &&
                       hellos_[static_cast<std::size_t>(hello.peer.rank)];
    refuse(connection, twice ? -1 : hello.peer.rank);
  }

  // Not of this run: it is told so, and the run goes on without it.
  void turn_away(const std::shared_ptr<Connection>& connection, const Failure& why, const std::string& who) {
    turned_away_ += "; turned away: " + who;
    if (turned_away_.size() > 1000) turned_away_.resize(1000);
    part_from(connection, why);
  }

  void refuse(const std::shared_ptr<Connection>& connection, int rank) {
    part_from(connection, *failure_);
    told(rank);
  }

  void part_from(const std::shared_ptr<Connection>& connection, const Failure& why) {
    connection->handle({});
    connection->send(frame(Kind::refusal, encode(why)));
    connection->send_last();
    late_.push_back(connection);
    if (late_.size() <= most_visitors) return;
    late_.front()->close();
    late_.pop_front();
  }

  void welcome(const std::shared_ptr<Connection>& connection, const Hello& hello) {
    const int rank = hello.peer.rank;
    connection->handle({{}, {}, [this, rank](const std::string& violation) { lost(rank, violation); }});
    meeting_.connections[static_cast<std::size_t>(rank)] = connection;
    hellos_[static_cast<std::size_t>(rank)] = hello;
    if (!missing().empty()) return;
    for (const auto& each : hellos_) meeting_.peers.push_back(each->peer);
    number_nodes(meeting_.peers);
    const std::string text = frame(Kind::welcome, encode(meeting_.peers));
    for (const auto& each : meeting_.connections)
      if (each) each->send(text);
    io_.stop();
  }

  void lost(int rank, const std::string& violation) {
    const std::string who = name_of(hellos_[static_cast<std::size_t>(rank)]->peer);
    fail({rank, who + (violation.empty() ? " ended while the ranks were starting" : " sent " + violation)});
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < hellos_.size(); ++rank)
      if (!hellos_[rank]) ranks.push_back(static_cast<int>(rank));
    return ranks;
  }

  std::string whom() const {
    return list_of(missing()) + " of " + std::to_string(launch_.size) + " at port " +
           std::to_string(launch_.port);
  }

  void announce() {
    announce_.expires_after(options_.announce_interval);
    announce_.async_wait([self = shared_from_this()](const std::error_code& error) {
      if (!error && !self->over_ && !self->failure_) self->say_whom();
    });
  }

  void say_whom() {
    options_.say(name_of(hellos_[0]->peer) + " waits for " + whom() + ", for " +
                 whole_seconds(Clock::now() - began_) + " so far, at most " +
                 whole_seconds(options_.start_timeout));
    announce();
  }

  void end_after(Clock::duration time, std::function<void()> call) {
    deadline_.expires_after(time);
    deadline_.async_wait([self = shared_from_this(), call = std::move(call)](const std::error_code& error) {
      if (!error && !self->over_) call();
    });
  }

  void time_is_up() {
    fail({missing().front(), name_of(hellos_[0]->peer) + ": " + whom() + " did not come within " +
                                 whole_seconds(options_.start_timeout) + turned_away_});
  }

  // Everyone who is there is told, and those who come within refusal_time.
  void fail(Failure failure) {
    if (failure_) return;
    failure_ = std::move(failure);
    end_after(options_.refusal_time, [this] { io_.stop(); });
    told(0);
    for (std::size_t rank = 0; rank < meeting_.connections.size(); ++rank) {
      const auto& connection = meeting_.connections[rank];
      if (!connection) continue;
      connection->handle({});
      connection->send(frame(Kind::refusal, encode(*failure_)));
      told(static_cast<int>(rank));
    }
  }

  void told(int rank) {
    if (rank >= 0 && rank < launch_.size) told_.insert(rank);
    if (told_.size() == hellos_.size())  // a moment for the bytes to leave
      end_after(std::chrono::milliseconds(100), [this] { io_.stop(); });
  }

  asio::io_context& io_;
  const Launch& launch_;
  const RendezvousOptions& options_;
  const Clock::time_point began_ = Clock::now();
  tcp::acceptor acceptor_;
  asio::steady_timer deadline_, announce_, pause_;
  std::map<std::uint64_t, Visitor> visitors_;  // by their number

  std::vector<std::optional<Hello>> hellos_;      // of the ranks that are there
  std::deque<std::shared_ptr<Connection>> late_;  // refused
  std::uint64_t visits_ = 0;
  int notes_ = 0;
  std::set<int> told_;
  bool over_ = false;
  std::string turned_away_;
  std::optional<Failure> failure_;
  Meeting meeting_;
};

}  // namespace

std::string whole_seconds(std::chrono::steady_clock::duration time) {
  return std::to_string(std::chrono::round<std::chrono::seconds>(time).count()) + " s";
}

Meeting await_ranks(asio::io_context& io, const Launch& launch, const Hello& hello,
                    const RendezvousOptions& options) {
  return std::make_shared<Awaiting>(io, launch, hello, options)->run();
}

}  // namespace goat
