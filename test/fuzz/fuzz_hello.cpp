// What arrives on the port of rank 0, from ranks or from strangers, is read or refused with WireError; what
// is read is written again as it came, and two ranks are compared whatever they say of themselves. The header
// tells which kind of message the rest is.
#include <string>
#include <string_view>

#include "train/ranks/hello_check.h"
#include "train/ranks/wire.h"

namespace {

void check(std::string_view body, const std::string& again) {
  if (again != body) __builtin_trap();
}

void read_hello(std::string_view body) {
  const goat::Hello hello = goat::decode_hello(body);
  check(body, goat::encode(hello));
  goat::Hello first = hello;
  if (const auto failure = goat::why_not(hello, {&first})) goat::decode_failure(goat::encode(*failure));
  first.peer.rank = hello.peer.rank == 0 ? 1 : 0;
  for (goat::Field& field : first.fields) field.value.resize(field.value.size() / 2);
  goat::why_not(hello, {&first});
}

void read(goat::Kind kind, std::string_view body) {
  switch (kind) {
    case goat::Kind::hello: return read_hello(body);
    case goat::Kind::welcome: return check(body, goat::encode(goat::decode_welcome(body)));
    case goat::Kind::beat: return check(body, goat::encode(goat::decode_beat(body)));
    case goat::Kind::contribution: return check(body, goat::encode(goat::decode_contribution(body)));
    case goat::Kind::collection:
    case goat::Kind::posts: return check(body, goat::encode(goat::decode_collection(body)));
    case goat::Kind::post: return check(body, goat::encode(goat::decode_post(body)));
    case goat::Kind::refusal:
    case goat::Kind::failure: return check(body, goat::encode(goat::decode_failure(body)));
  }
  __builtin_trap();  // decode_header lets no other kind pass
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const goat::Header header = goat::decode_header(bytes.substr(0, goat::header_bytes));
    read(header.kind, bytes.substr(goat::header_bytes));
  } catch (const goat::WireError&) {
  }
  return 0;
}
