#include "data/checksum.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include <array>
#include <cstdio>
#include <new>
#include <stdexcept>

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

namespace {
void require(bool done) {
  if (!done) throw std::runtime_error("libcrypto cannot compute SHA-256 on this system");
}
}  // namespace

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  State() {
    if (!context) throw std::bad_alloc();
  }
  ~State() { EVP_MD_CTX_free(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  require(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;

void Sha256::add(const void* bytes, std::size_t count) {
  require(EVP_DigestUpdate(state_->context, bytes, count) == 1);
}

std::string Sha256::finish() {
  std::array<unsigned char, 32> digest{};
  require(EVP_DigestFinal_ex(state_->context, digest.data(), nullptr) == 1);
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : digest) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

}  // namespace goat
