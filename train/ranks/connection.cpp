#include "train/ranks/connection.h"

#include <algorithm>
#include <asio/buffer.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <utility>

namespace goat {

namespace {

std::string address_text(const asio::ip::tcp::socket& socket) {
  std::error_code error;
  const auto remote = socket.remote_endpoint(error);
  return error ? "?" : remote.address().to_string() + ":" + std::to_string(remote.port());
}

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket)
    : socket_(std::move(socket)), address_(address_text(socket_)) {
  std::error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

void Connection::start() { read_header(); }

void Connection::read_header() {
  header_.resize(header_bytes);
  asio::async_read(socket_, asio::buffer(header_),
                   [self = shared_from_this()](const std::error_code& error, std::size_t) {
                     if (self->ended_) return;
                     if (error) return self->end("");
                     self->heard_ = Clock::now();
                     try {
                       self->read_body(decode_header(self->header_));
                     } catch (const WireError& wrong) {
                       self->end(wrong.what());
                     }
                   });
}

void Connection::read_body(Header header) {
  const auto& accepted = handlers_.accepted;
  if (std::find(accepted.begin(), accepted.end(), header.kind) == accepted.end())
    throw WireError("a message that is not expected here");
  body_.resize(header.bytes);
  const auto note = [self = shared_from_this()](const std::error_code& error, std::size_t) {
    self->heard_ = Clock::now();  // a long body is a sign of life while it comes
    return error ? std::size_t{0} : std::size_t{1} << 16;
  };
  asio::async_read(socket_, asio::buffer(body_), note,
                   [self = shared_from_this(), header](const std::error_code& error, std::size_t) {
                     if (self->ended_) return;
                     if (error) return self->end("");
                     const auto received = self->handlers_.received;  // which may change the handlers
                     try {
                       received(header.kind, std::exchange(self->body_, {}));
                     } catch (const WireError& wrong) {
                       if (!self->ended_) return self->end(wrong.what());
                     }
                     if (!self->ended_) self->read_header();
                   });
}

void Connection::send(std::string frame) {
  if (ended_ || last_) return;
  queue_.push_back(std::move(frame));
  if (queue_.size() == 1) write_next();
}

void Connection::write_next() {
  asio::async_write(socket_, asio::buffer(queue_.front()),
                    [self = shared_from_this()](const std::error_code& error, std::size_t) {
                      if (error || self->ended_) return self->queue_.clear();  // reading tells of the end
                      self->queue_.pop_front();
                      if (!self->queue_.empty()) return self->write_next();
                      if (self->last_) self->send_last();
                    });
}

void Connection::end(const std::string& violation) {
  const auto ended = std::move(handlers_.ended);
  close();
  if (ended) ended(violation);
}

void Connection::close() {
  if (std::exchange(ended_, true)) return;
  std::error_code ignored;
  socket_.close(ignored);
}

void Connection::send_last() {
  last_ = true;
  std::error_code ignored;
  if (!ended_ && queue_.empty()) socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

}  // namespace goat
