#include "data/checksum.h"

#include <xxhash.h>

#include <cstdio>
#include <new>

namespace goat {

namespace {
std::string hexadecimal(XXH64_hash_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}
}  // namespace

struct Checksum::State {
  XXH3_state_t* xxh3 = XXH3_createState();
  State() {
    if (!xxh3) throw std::bad_alloc();
    XXH3_64bits_reset(xxh3);
  }
  ~State() { XXH3_freeState(xxh3); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {}
Checksum::~Checksum() = default;

void Checksum::add(const void* bytes, std::size_t count) { XXH3_64bits_update(state_->xxh3, bytes, count); }

std::string Checksum::text() const { return hexadecimal(XXH3_64bits_digest(state_->xxh3)); }

std::string checksum_of(std::string_view bytes) {
  return hexadecimal(XXH3_64bits(bytes.data(), bytes.size()));
}

}  // namespace goat
