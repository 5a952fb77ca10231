// The other ranks' side of the rendezvous.
#include <algorithm>
#include <asio/connect.hpp>
#include <asio/steady_timer.hpp>
#include <optional>
#include <utility>

#include "train/ranks/ranks_error.h"
#include "train/ranks/rendezvous.h"

namespace goat {

namespace {

using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

// Held by its own pending calls, which come after over_ too.
class Joining : public std::enable_shared_from_this<Joining> {
 public:
  Joining(asio::io_context& io, const Launch& launch, const Hello& hello, const RendezvousOptions& options)
      : io_(io),
        launch_(launch),
        hello_(hello),
        options_(options),
        resolver_(io),
        socket_(io),
        deadline_(io),
        announce_(io),
        retry_(io) {}

  Meeting run() {
    end_after(options_.start_timeout);
    announce();
    look_up();
    io_.restart();
    io_.run();
    over_ = true;
    resolver_.cancel();
    std::error_code ignored;
    socket_.close(ignored);
    for (asio::steady_timer* timer : {&deadline_, &announce_, &retry_}) timer->cancel();
    if (!failure_) return std::move(meeting_);
    if (connection_) connection_->close();
    throw RanksError(failure_->reason, failure_->code);
  }

 private:
  std::string where() const { return "rank 0 at " + launch_.address + ":" + std::to_string(launch_.port); }

  void look_up() {
    trouble_ = "no answer to the look-up of its name";
    resolver_.async_resolve(
        launch_.address, std::to_string(launch_.port),
        [self = shared_from_this()](const std::error_code& error, const tcp::resolver::results_type& places) {
          if (self->over_) return;
          if (error) return self->try_again(error.message());
          self->connect(places);
        });
  }

  void connect(const tcp::resolver::results_type& places) {
    trouble_ = "no answer to the connection";
    retry_.expires_after(std::chrono::seconds(5));  // a host that drops packets: once more
    retry_.async_wait([self = shared_from_this()](const std::error_code& error) {
      std::error_code ignored;
      if (!error && !self->over_ && !self->connection_) self->socket_.close(ignored);
    });
    asio::async_connect(socket_, places,
                        [self = shared_from_this()](const std::error_code& error, const tcp::endpoint&) {
                          if (self->over_) return;
                          self->retry_.cancel();
                          if (error == asio::error::operation_aborted)
                            return self->try_again("no answer to the connection");
                          if (error) return self->try_again(error.message());
                          self->greet();
                        });
  }

  void try_again(const std::string& trouble) {
    trouble_ = trouble;
    std::error_code ignored;
    socket_.close(ignored);
    retry_.expires_after(pause_);
    pause_ = std::min(2 * pause_, options_.retry_interval);
    retry_.async_wait([self = shared_from_this()](const std::error_code& error) {
      if (!error && !self->over_) self->look_up();
    });
  }

  void greet() {
    // Where nobody listens on a port of this host, a connection may meet itself.
    std::error_code error;
    if (socket_.local_endpoint(error) == socket_.remote_endpoint(error))
      return try_again("Connection refused");
    connection_ = std::make_shared<Connection>(std::move(socket_));
    trouble_ = "it has not all ranks yet";
    // Rank 0 was there before: its own time is up first, and it says who is missing.
    end_after(options_.start_timeout + std::chrono::seconds(5));
    connection_->handle({{Kind::welcome, Kind::refusal},
                         [this](Kind kind, const std::string& body) { take(kind, body); },
                         [this](const std::string& violation) { lost(violation); }});
    connection_->start();
    connection_->send(frame(Kind::hello, encode(hello_)));
  }

  void take(Kind kind, const std::string& body) {
    if (kind == Kind::refusal) return fail(decode_failure(body));
    meeting_.peers = decode_welcome(body);
    if (meeting_.peers.size() != static_cast<std::size_t>(launch_.size))
      throw WireError("a list of " + std::to_string(meeting_.peers.size()) + " ranks");
    connection_->handle({});
    meeting_.connections = {connection_};
    io_.stop();
  }

  void lost(const std::string& violation) {
    fail(
        {0, name_of(hello_.peer) + ": " + where() +
                (violation.empty() ? " ended while the ranks were starting" : " answered with " + violation) +
                "; is that rank 0 of this run?"});
  }

  void announce() {
    announce_.expires_after(options_.announce_interval);
    announce_.async_wait([self = shared_from_this()](const std::error_code& error) {
      if (!error && !self->over_) self->say_whom();
    });
  }

  void say_whom() {
    options_.say(name_of(hello_.peer) + " waits for " + where() + " (" + trouble_ + "), for " +
                 whole_seconds(Clock::now() - began_) + " so far, at most " +
                 whole_seconds(options_.start_timeout));
    announce();
  }

  void end_after(Clock::duration time) {
    deadline_.expires_after(time);
    deadline_.async_wait([self = shared_from_this()](const std::error_code& error) {
      if (!error && !self->over_) self->time_is_up();
    });
  }

  void time_is_up() {
    fail({0, name_of(hello_.peer) + ": " + where() + " did not answer within " +
                 whole_seconds(options_.start_timeout) + " (" + trouble_ +
                 "): is it running, and is MASTER_ADDR its host?"});
  }

  void fail(Failure failure) {
    failure_ = std::move(failure);
    io_.stop();
  }

  asio::io_context& io_;
  const Launch& launch_;
  const Hello& hello_;
  const RendezvousOptions& options_;
  const Clock::time_point began_ = Clock::now();
  tcp::resolver resolver_;
  tcp::socket socket_;
  asio::steady_timer deadline_, announce_, retry_;
  std::chrono::milliseconds pause_{25};  // between two trials: ranks that start together soon meet
  std::string trouble_;
  std::shared_ptr<Connection> connection_;
  std::optional<Failure> failure_;
  Meeting meeting_;
  bool over_ = false;
};

}  // namespace

Meeting join_ranks(asio::io_context& io, const Launch& launch, const Hello& hello,
                   const RendezvousOptions& options) {
  return std::make_shared<Joining>(io, launch, hello, options)->run();
}

}  // namespace goat
