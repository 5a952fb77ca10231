// A TCP connection between two ranks that carries the frames of wire.h. Everything runs on the thread that
// runs the io_context.
#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "train/ranks/wire.h"

namespace goat {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;
  struct Handlers {
    std::vector<Kind> accepted;  // any other kind is a violation
    std::function<void(Kind, std::string body)> received;
    // Once, unless close() came before; nothing is received after it. `violation`: what it sent that was no
    // message; empty if the connection has ended.
    std::function<void(const std::string& violation)> ended;
  };

  explicit Connection(asio::ip::tcp::socket socket);

  void start();  // begins to read
  void handle(Handlers handlers) { handlers_ = std::move(handlers); }
  void send(std::string frame);
  void close();      // at once, without calling `ended`
  void send_last();  // nothing more will be sent; what was, still goes out
  bool sent() const { return queue_.empty(); }
  bool over() const { return ended_; }
  Clock::time_point heard() const { return heard_; }  // when the last byte came
  const std::string& address() const { return address_; }

 private:
  void read_header();
  void read_body(Header header);
  void write_next();
  void end(const std::string& violation);

  asio::ip::tcp::socket socket_;
  std::string address_;
  Handlers handlers_;
  std::string header_, body_;
  std::deque<std::string> queue_;
  Clock::time_point heard_ = Clock::now();
  bool ended_ = false, last_ = false;
};

}  // namespace goat
