// What ranks tell each other over their connections: frames of a header and a body. Numbers are
// little-endian, texts and byte strings stand after their length. Whatever arrives is checked here: a
// stranger may send anything.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "train/ranks/peer.h"

namespace goat {

constexpr std::uint32_t rank_protocol = 2;                     // changes with anything below
constexpr std::size_t most_gathered = std::size_t{256} << 20;  // bytes of all ranks in one gather
constexpr std::size_t most_posted = 4096;                      // bytes of a rank in one post
constexpr std::size_t most_ahead = 64;                         // posts that a rank has not collected

// Bytes that are not what a rank of this protocol sends.
struct WireError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Kind : std::uint32_t {
  hello = 1,     // a rank to rank 0
  welcome,       // rank 0 to all: the ranks are complete
  refusal,       // rank 0 to a rank: there will be no run
  beat,          // both ways, each second
  contribution,  // a rank to rank 0: its part of a gather
  collection,    // rank 0 to all: the parts of all
  failure,       // a rank to rank 0: it, or one that it waits for, cannot go on; rank 0 to all: the run ends
  post,          // a rank to rank 0: its next part of the posts
  posts,         // rank 0 to all: a collection, the parts of all
};

constexpr std::size_t header_bytes = 12;
struct Header {
  Kind kind = Kind::hello;
  std::size_t bytes = 0;  // of the body, within the limit of its kind
};
Header decode_header(std::string_view header);        // exactly header_bytes
std::string frame(Kind kind, std::string_view body);  // throws std::length_error beyond the limit

// What the ranks of a run must agree on before it starts.
struct Field {
  enum class Rule : std::uint8_t { equal, distinct };  // distinct: where it is not empty
  std::string name, value;
  Rule rule = Rule::equal;
};

struct Hello {
  std::string job;
  std::int32_t size = 1;
  Peer peer;  // without node and local_rank
  std::vector<Field> fields;
};
std::string encode(const Hello& hello);  // bodies
Hello decode_hello(std::string_view body);

std::string encode(const std::vector<Peer>& peers);
std::vector<Peer> decode_welcome(std::string_view body);

// Where a rank is.
struct Beat {
  std::int64_t step = 0;
  std::string phase = "start";
  bool may_take_long = true;                 // the phase
  std::uint64_t enqueued = 0, finished = 0;  // the number of the last collective
  bool operator==(const Beat&) const = default;
};
std::string encode(const Beat& beat);
Beat decode_beat(std::string_view body);

struct Contribution {
  std::uint64_t number = 0;  // gathers so far
  std::string what;
  std::uint32_t limit_ms = 0;
  std::string bytes;
};
std::string encode(const Contribution& contribution);
Contribution decode_contribution(std::string_view body);

struct Collection {
  std::uint64_t number = 0;
  std::vector<std::string> parts;
};
std::string encode(const Collection& collection);
Collection decode_collection(std::string_view body);

struct Post {
  std::uint64_t number = 0;  // 0, 1, 2, ...
  std::string bytes;
};
std::string encode(const Post& post);
Post decode_post(std::string_view body);

// Why a run ends or does not start.
struct Failure {
  std::int32_t rank = -1;  // which caused it; -1 if none can be named
  std::string reason;      // names it
  std::int32_t code = 1;   // exit code, 1-255
};
std::string encode(const Failure& failure);  // a long reason is cut
Failure decode_failure(std::string_view body);

}  // namespace goat
