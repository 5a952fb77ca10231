#include "train/ranks/wire.h"

#include <algorithm>
#include <concepts>

namespace goat {

namespace {

constexpr std::uint32_t magic = 0x54414f47;  // "GOAT"
constexpr std::size_t longest_name = 256, longest_reason = 1 << 14, most_fields = 64, most_peers = 1 << 16;

std::size_t limit_of(Kind kind) {
  switch (kind) {
    case Kind::hello: return 1 << 20;
    case Kind::welcome: return 1 << 25;
    case Kind::refusal:
    case Kind::failure: return longest_reason + 64;
    case Kind::beat: return 512;
    case Kind::contribution: return most_gathered + 512;
    case Kind::collection:
    case Kind::posts: return most_gathered + 8 * most_peers + 64;
    case Kind::post: return most_posted + 64;
  }
  throw WireError("not a message of this program");
}

class Writer {
 public:
  template <std::integral Number>
  Writer& number(Number value) {
    const auto bits = static_cast<std::make_unsigned_t<Number>>(value);
    for (std::size_t byte = 0; byte < sizeof(Number); ++byte)
      bytes_ += static_cast<char>((static_cast<std::uint64_t>(bits) >> (8 * byte)) & 255);
    return *this;
  }
  Writer& text(std::string_view text) {
    number(static_cast<std::uint32_t>(text.size()));
    bytes_ += text;
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <std::integral Number>
  Number number() {
    std::uint64_t bits = 0;
    const std::string_view part = take(sizeof(Number));
    for (std::size_t byte = 0; byte < sizeof(Number); ++byte)
      bits |= static_cast<std::uint64_t>(static_cast<unsigned char>(part[byte])) << (8 * byte);
    return static_cast<Number>(bits);
  }
  std::string text(std::size_t longest) {
    const auto size = number<std::uint32_t>();
    if (size > longest) throw WireError("a text of " + std::to_string(size) + " bytes is too long");
    return std::string(take(size));
  }
  // A count of things that take at least `least` bytes each.
  std::size_t count(std::size_t most, std::size_t least) {
    const auto count = number<std::uint32_t>();
    if (count > most || count * least > bytes_.size())
      throw WireError("a list of " + std::to_string(count) + " is too long");
    return count;
  }
  bool flag() {
    const auto value = number<std::uint8_t>();
    if (value > 1) throw WireError("a flag is neither 0 nor 1");
    return value == 1;
  }
  void finish() const {
    if (!bytes_.empty()) throw WireError(std::to_string(bytes_.size()) + " bytes too many");
  }

 private:
  std::string_view take(std::size_t count) {
    if (count > bytes_.size()) throw WireError("a message ends too early");
    const std::string_view part = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return part;
  }
  std::string_view bytes_;
};

void write(Writer& writer, const Peer& peer) { writer.text(peer.host).text(peer.boot_id).number(peer.pid); }

Peer read_peer(Reader& reader) {
  Peer peer;
  peer.host = reader.text(longest_name);
  peer.boot_id = reader.text(longest_name);
  peer.pid = reader.number<std::int64_t>();
  return peer;
}

}  // namespace

Header decode_header(std::string_view header) {
  Reader reader(header);
  if (reader.number<std::uint32_t>() != magic) throw WireError("not a message of this program");
  const auto kind = static_cast<Kind>(reader.number<std::uint32_t>());
  const auto bytes = reader.number<std::uint32_t>();
  reader.finish();
  if (bytes > limit_of(kind)) throw WireError("a message of " + std::to_string(bytes) + " bytes is too long");
  return {kind, bytes};
}

std::string frame(Kind kind, std::string_view body) {
  if (body.size() > limit_of(kind))
    throw std::length_error("ranks: a message of " + std::to_string(body.size()) + " bytes, at most " +
                            std::to_string(limit_of(kind)) + " are allowed");
  Writer writer;
  writer.number(magic).number(static_cast<std::uint32_t>(kind)).text(body);
  return writer.take();
}

std::string encode(const Hello& hello) {
  Writer writer;
  writer.number(rank_protocol).text(hello.job).number(hello.peer.rank).number(hello.size);
  write(writer, hello.peer);
  writer.number(static_cast<std::uint32_t>(hello.fields.size()));
  for (const Field& field : hello.fields)
    writer.text(field.name).text(field.value).number(static_cast<std::uint8_t>(field.rule));
  return writer.take();
}

Hello decode_hello(std::string_view body) {
  Reader reader(body);
  if (const auto protocol = reader.number<std::uint32_t>(); protocol != rank_protocol)
    throw WireError("protocol " + std::to_string(protocol) + ", rank 0 speaks protocol " +
                    std::to_string(rank_protocol) + ": two versions of the program");
  Hello hello;
  hello.job = reader.text(longest_name);
  const auto rank = reader.number<std::int32_t>();
  hello.size = reader.number<std::int32_t>();
  hello.peer = read_peer(reader);
  hello.peer.rank = rank;
  const std::size_t fields = reader.count(most_fields, 9);
  for (std::size_t i = 0; i < fields; ++i) {
    Field& field = hello.fields.emplace_back();
    field.name = reader.text(longest_name);
    field.value = reader.text(limit_of(Kind::hello));
    field.rule = reader.flag() ? Field::Rule::distinct : Field::Rule::equal;
  }
  reader.finish();
  return hello;
}

std::string encode(const std::vector<Peer>& peers) {
  Writer writer;
  writer.number(static_cast<std::uint32_t>(peers.size()));
  for (const Peer& peer : peers) write(writer, peer);
  return writer.take();
}

std::vector<Peer> decode_welcome(std::string_view body) {
  Reader reader(body);
  std::vector<Peer> peers(reader.count(most_peers, 16));
  for (std::size_t rank = 0; rank < peers.size(); ++rank) {
    peers[rank] = read_peer(reader);
    peers[rank].rank = static_cast<int>(rank);
  }
  reader.finish();
  number_nodes(peers);
  return peers;
}

std::string encode(const Beat& beat) {
  return Writer()
      .number(beat.step)
      .text(std::string_view(beat.phase).substr(0, longest_name))
      .number(static_cast<std::uint8_t>(beat.may_take_long))
      .number(beat.enqueued)
      .number(beat.finished)
      .take();
}

Beat decode_beat(std::string_view body) {
  Reader reader(body);
  Beat beat;
  beat.step = reader.number<std::int64_t>();
  beat.phase = reader.text(longest_name);
  beat.may_take_long = reader.flag();
  beat.enqueued = reader.number<std::uint64_t>();
  beat.finished = reader.number<std::uint64_t>();
  reader.finish();
  return beat;
}

std::string encode(const Contribution& contribution) {
  return Writer()
      .number(contribution.number)
      .text(std::string_view(contribution.what).substr(0, longest_name))
      .number(contribution.limit_ms)
      .text(contribution.bytes)
      .take();
}

Contribution decode_contribution(std::string_view body) {
  Reader reader(body);
  Contribution contribution;
  contribution.number = reader.number<std::uint64_t>();
  contribution.what = reader.text(longest_name);
  contribution.limit_ms = reader.number<std::uint32_t>();
  contribution.bytes = reader.text(most_gathered);
  reader.finish();
  return contribution;
}

std::string encode(const Collection& collection) {
  Writer writer;
  writer.number(collection.number).number(static_cast<std::uint32_t>(collection.parts.size()));
  for (const std::string& part : collection.parts) writer.text(part);
  return writer.take();
}

Collection decode_collection(std::string_view body) {
  Reader reader(body);
  Collection collection;
  collection.number = reader.number<std::uint64_t>();
  collection.parts.resize(reader.count(most_peers, 4));
  for (std::string& part : collection.parts) part = reader.text(most_gathered);
  reader.finish();
  return collection;
}

std::string encode(const Post& post) { return Writer().number(post.number).text(post.bytes).take(); }

Post decode_post(std::string_view body) {
  Reader reader(body);
  Post post;
  post.number = reader.number<std::uint64_t>();
  post.bytes = reader.text(most_posted);
  reader.finish();
  return post;
}

std::string encode(const Failure& failure) {
  return Writer()
      .number(failure.rank)
      .text(std::string_view(failure.reason).substr(0, longest_reason))
      .number(failure.code)
      .take();
}

Failure decode_failure(std::string_view body) {
  Reader reader(body);
  Failure failure;
  failure.rank = reader.number<std::int32_t>();
  failure.reason = reader.text(longest_reason);
  failure.code = reader.number<std::int32_t>();
  if (failure.code < 1 || failure.code > 255) throw WireError("an exit code out of range");
  reader.finish();
  return failure;
}

}  // namespace goat
