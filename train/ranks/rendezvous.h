// How ranks find each other: rank 0 listens, the others connect to it and say who they are, rank 0 compares.
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "train/ranks/connection.h"
#include "train/ranks/launch.h"
#include "train/ranks/wire.h"

namespace goat {

struct RendezvousOptions {
  std::chrono::milliseconds start_timeout{300'000};
  std::chrono::milliseconds announce_interval{10'000};  // says whom it waits for
  std::chrono::milliseconds hello_timeout{10'000};      // for a connection that says nothing
  std::chrono::milliseconds refusal_time{3'000};        // after a refusal, to tell those who come later
  std::chrono::milliseconds retry_interval{500};
  std::function<void(const std::string& line)> say;
};

struct Meeting {
  std::vector<Peer> peers;                               // all ranks
  std::vector<std::shared_ptr<Connection>> connections;  // by rank; rank 0 has all but its own, the others
                                                         // only that to rank 0
};

std::string whole_seconds(std::chrono::steady_clock::duration time);  // 300 s

// Both run the io_context until the ranks are complete, and leave it stopped. They throw RanksError, on every
// rank with the reason, if that cannot be: a rank that is missing, that comes twice, ends, or that differs.
Meeting await_ranks(asio::io_context& io, const Launch& launch, const Hello& hello,
                    const RendezvousOptions& options);  // rank 0
Meeting join_ranks(asio::io_context& io, const Launch& launch, const Hello& hello,
                   const RendezvousOptions& options);

}  // namespace goat
