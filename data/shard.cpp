#include "data/shard.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "data/checksum.h"

namespace goat {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw DataError("token shard '" + path + "': " + what);
}

std::string error_text() { return std::strerror(errno); }

// An open shard file.
class ShardFile {
 public:
  explicit ShardFile(const std::string& path)
      : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (descriptor_ < 0) fail(path_, "cannot open it: " + error_text());
  }
  ShardFile(const ShardFile&) = delete;
  ShardFile& operator=(const ShardFile&) = delete;
  ~ShardFile() { ::close(descriptor_); }

  FileIdentity identity() const {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) fail(path_, "cannot examine it: " + error_text());
    if (S_ISDIR(status.st_mode))
      fail(path_, "is a folder, not a file: add '/*.bin' to the pattern to use the shards inside");
    if (!S_ISREG(status.st_mode)) fail(path_, "is not a regular file");
    return {status.st_dev, status.st_ino, status.st_size,
            std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
  }

  // Reads exactly `bytes` bytes, starting at `offset`.
  void read(std::int64_t offset, void* data, std::int64_t bytes) const {
    char* to = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t count = ::pread(descriptor_, to, static_cast<std::size_t>(bytes), offset);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0)
        fail(path_, "cannot read " + std::to_string(bytes) + " bytes at byte " + std::to_string(offset) +
                        ": " + error_text());
      if (count == 0) {
        fail(path_, "ends at byte " + std::to_string(offset) + ", " + std::to_string(bytes) +
                        " bytes early: the file was cut short while in use");
      }
      to += count;
      offset += count;
      bytes -= count;
    }
  }

 private:
  const std::string& path_;
  int descriptor_;
};

}  // namespace

Shard::Shard(std::string path, std::int64_t vocab) : path_(std::move(path)), vocab_(vocab) {
  const ShardFile file(path_);
  identity_ = file.identity();
  const std::int64_t size = identity_.bytes;
  if (size == 0) fail(path_, "is empty");
  if (size < header_bytes) {
    fail(path_, "has " + std::to_string(size) + " bytes, less than a header (" +
                    std::to_string(header_bytes) + "): not a token shard, or cut short");
  }
  std::array<std::int32_t, 3> header{};
  file.read(0, header.data(), sizeof(header));
  if (header[0] != magic) {
    fail(path_, "byte 0: magic number " + std::to_string(header[0]) + ", expected " + std::to_string(magic) +
                    ": not a token shard (data/prepare.py makes them)");
  }
  if (header[1] != version) {
    fail(path_, "byte 4: format version " + std::to_string(header[1]) + ", expected " +
                    std::to_string(version) + " (tokens as uint16)");
  }
  if (header[2] < 0) fail(path_, "byte 8: negative token count " + std::to_string(header[2]));
  tokens_ = header[2];
  const std::int64_t expected = header_bytes + 2 * tokens_;
  if (size != expected) {
    fail(path_, "byte 8: the header says " + std::to_string(tokens_) + " tokens, which makes a file of " +
                    std::to_string(expected) + " bytes, but it has " + std::to_string(size) +
                    (size < expected ? ": cut short; copy or prepare it again"
                                     : ": trailing bytes; copy or prepare it again"));
  }
}

void Shard::read(std::int64_t first, std::span<std::uint16_t> tokens) const {
  const std::int64_t count = std::ssize(tokens);
  if (first < 0 || first > tokens_ || count > tokens_ - first) {
    throw std::out_of_range("token shard '" + path_ + "': tokens " + std::to_string(first) + " + " +
                            std::to_string(count) + " of " + std::to_string(tokens_));
  }
  const ShardFile file(path_);
  check_unchanged(file.identity());
  file.read(header_bytes + 2 * first, tokens.data(), 2 * count);
  check_vocabulary(first, tokens);
}

std::string Shard::samples_checksum() const {
  constexpr std::int64_t pieces = 16, piece_bytes = 4096;
  const ShardFile file(path_);
  check_unchanged(file.identity());
  Checksum checksum;
  std::vector<char> piece(piece_bytes);
  const auto add = [&](std::int64_t offset, std::int64_t bytes) {
    file.read(offset, piece.data(), bytes);
    checksum.add(piece.data(), static_cast<std::size_t>(bytes));
  };
  add(0, header_bytes);
  const std::int64_t end = identity_.bytes, stride = std::max((end - header_bytes) / pieces, piece_bytes);
  for (std::int64_t offset = header_bytes; offset < end; offset += stride)
    add(offset, std::min(piece_bytes, end - offset));
  return checksum.text();
}

void Shard::check_unchanged(const FileIdentity& now) const {
  if (now == identity_) return;
  fail(path_, "has changed since it was opened (it had " + std::to_string(identity_.bytes) +
                  " bytes and now has " + std::to_string(now.bytes) +
                  "): shards must stay as they are during a run; restore it and resume");
}

void Shard::check_vocabulary(std::int64_t first, std::span<const std::uint16_t> tokens) const {
  std::uint16_t largest = 0;
  for (const std::uint16_t token : tokens) largest = std::max(largest, token);
  if (largest < vocab_) return;
  const auto bad =
      std::find_if(tokens.begin(), tokens.end(), [&](std::uint16_t token) { return token >= vocab_; });
  fail(path_, "token " + std::to_string(first + (bad - tokens.begin())) + " has id " + std::to_string(*bad) +
                  ", but the vocabulary has " + std::to_string(vocab_) +
                  ": set model.vocab to that of the tokenizer, or prepare the shards with another one");
}

}  // namespace goat
