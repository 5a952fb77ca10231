// Checksums of bytes that are added in pieces: Checksum (XXH3, 64 bit, fast) and Sha256, both as hexadecimal
// digits.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace goat {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(const void* bytes, std::size_t count);
  std::string text() const;  // checksum of all bytes added so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string checksum_of(std::string_view bytes);

class Sha256 {
 public:
  Sha256();  // throws std::runtime_error if the system's libcrypto does not offer it
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(const void* bytes, std::size_t count);
  std::string finish();  // checksum of all bytes; nothing may be added after it

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace goat
