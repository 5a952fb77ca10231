#include "data/shard.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "data/checksum.h"

namespace goat {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw DataError("token shard '" + path + "': " + what);
}

std::string error_text() { return std::strerror(errno); }

// The format that a header states.
Shard::Format format_of(const std::string& path, std::int32_t magic, std::int32_t version) {
  for (const Shard::Format& format : {Shard::uint16_tokens, Shard::uint32_tokens}) {
    if (format.magic != magic) continue;
    if (format.version == version) return format;
    fail(path, "byte 4: format version " + std::to_string(version) + ", expected " +
                   std::to_string(format.version) + " (tokens as uint" +
                   std::to_string(8 * format.token_bytes) + ")");
  }
  fail(path, "byte 0: magic number " + std::to_string(magic) + ", expected " +
                 std::to_string(Shard::uint16_tokens.magic) + " (tokens as uint16) or " +
                 std::to_string(Shard::uint32_tokens.magic) +
                 " (uint32): not a token shard (data/prepare.py makes them)");
}

// The first words of a header.
using HeaderStart = std::array<std::int32_t, 3>;

}  // namespace

// An open shard file.
class Shard::File {
 public:
  // `advice` follows the error if it cannot be opened.
  explicit File(const std::string& path, const char* advice = "")
      : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (descriptor_ < 0) fail(path_, "cannot open it: " + error_text() + advice);
  }
  File(File&& other) noexcept : path_(other.path_), descriptor_(std::exchange(other.descriptor_, -1)) {}
  File& operator=(File&&) = delete;
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

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

struct Shard::FirstOpened {
  std::mutex mutex;
  std::optional<FileIdentity> identity;  // of the file that was opened first
};

Shard::Shard(std::string path, std::int64_t vocab)
    : path_(std::move(path)), location_(path_), vocab_(vocab), first_(std::make_unique<FirstOpened>()) {
  const File file(location_);
  first_->identity = file.identity();
  const std::int64_t size = first_->identity->bytes;
  if (size == 0) fail(path_, "is empty");
  if (size < header_bytes) {
    fail(path_, "has " + std::to_string(size) + " bytes, less than a header (" +
                    std::to_string(header_bytes) + "): not a token shard, or cut short");
  }
  HeaderStart header{};
  file.read(0, header.data(), sizeof(header));
  format_ = format_of(path_, header[0], header[1]);
  if (header[2] < 0) fail(path_, "byte 8: negative token count " + std::to_string(header[2]));
  tokens_ = header[2];
  const std::int64_t expected = offset_of(tokens_);
  if (size != expected) {
    fail(path_, "byte 8: the header says " + std::to_string(tokens_) + " tokens of " +
                    std::to_string(format_.token_bytes) + " bytes, which makes a file of " +
                    std::to_string(expected) + " bytes, but it has " + std::to_string(size) +
                    (size < expected ? ": cut short; copy or prepare it again"
                                     : ": trailing bytes; copy or prepare it again"));
  }
}

Shard::Shard(const ScannedShard& scanned, const std::string& folder, std::int64_t vocab)
    : path_(scanned.path),
      location_(std::filesystem::path(folder) / path_),
      vocab_(vocab),
      format_(scanned.token_bytes == uint16_tokens.token_bytes ? uint16_tokens : uint32_tokens),
      tokens_(scanned.tokens),
      first_(std::make_unique<FirstOpened>()) {}

Shard::Shard(Shard&& other) noexcept = default;
Shard::~Shard() = default;

bool Shard::opened_before() const {
  const std::lock_guard lock(first_->mutex);
  return first_->identity.has_value();
}

Shard::File Shard::open() const {
  const bool known = opened_before();
  File file(location_, known ? ""
                             : "; rank 0 could: the data must be on a file system that all ranks share, at "
                               "the same path");
  const FileIdentity now = file.identity();
  if (!known) check_scanned(file, now.bytes);
  check_unchanged(now);
  return file;
}

void Shard::read(std::int64_t first, std::span<std::int32_t> tokens) const {
  const std::int64_t count = std::ssize(tokens);
  if (first < 0 || first > tokens_ || count > tokens_ - first) {
    throw std::out_of_range("token shard '" + location_ + "': tokens " + std::to_string(first) + " + " +
                            std::to_string(count) + " of " + std::to_string(tokens_));
  }
  format_.token_bytes == 2 ? read_as<std::uint16_t>(first, tokens) : read_as<std::uint32_t>(first, tokens);
}

template <class Id>
void Shard::read_as(std::int64_t first, std::span<std::int32_t> tokens) const {
  std::vector<Id> ids(tokens.size());
  const File file = open();
  file.read(offset_of(first), ids.data(), static_cast<std::int64_t>(ids.size() * sizeof(Id)));
  check_vocabulary<Id>(first, ids);
  std::transform(ids.begin(), ids.end(), tokens.begin(), [](Id id) { return static_cast<std::int32_t>(id); });
}

void Shard::verify(const std::string& sha256, const std::stop_token& stop) const {
  format_.token_bytes == 2 ? verify_as<std::uint16_t>(sha256, stop) : verify_as<std::uint32_t>(sha256, stop);
}

template <class Id>
void Shard::verify_as(const std::string& sha256, const std::stop_token& stop) const {
  static std::mutex turn;
  const File file = open();
  Sha256 digest;
  std::array<char, header_bytes> header{};
  file.read(0, header.data(), header_bytes);
  digest.add(header.data(), header.size());
  std::vector<Id> piece(std::min(std::size_t{4} << 20, static_cast<std::size_t>(bytes())) / sizeof(Id));
  for (std::int64_t first = 0; first < tokens_;) {
    const std::lock_guard lock(turn);
    if (stop.stop_requested()) return;
    const auto ids =
        std::span(piece).first(static_cast<std::size_t>(std::min(std::ssize(piece), tokens_ - first)));
    file.read(offset_of(first), ids.data(), static_cast<std::int64_t>(ids.size_bytes()));
    check_vocabulary<Id>(first, ids);
    if (!sha256.empty()) digest.add(ids.data(), ids.size_bytes());
    first += std::ssize(ids);
  }
  check_unchanged(file.identity());
  if (sha256.empty()) return;
  if (const std::string found = digest.finish(); found != sha256)
    fail(location_, "its sha256 is " + found + ", but meta.json beside it says " + sha256 +
                        ": not the file that was prepared, or damaged; copy or prepare it again");
}

std::string Shard::samples_checksum() const {
  constexpr std::int64_t pieces = 16, piece_bytes = 4096;
  const File file = open();
  Checksum checksum;
  std::vector<char> piece(piece_bytes);
  const auto add = [&](std::int64_t offset, std::int64_t bytes) {
    file.read(offset, piece.data(), bytes);
    checksum.add(piece.data(), static_cast<std::size_t>(bytes));
  };
  add(0, header_bytes);
  const std::int64_t end = bytes(), stride = std::max((end - header_bytes) / pieces, piece_bytes);
  for (std::int64_t offset = header_bytes; offset < end; offset += stride)
    add(offset, std::min(piece_bytes, end - offset));
  return checksum.text();
}

void Shard::check_unchanged(const FileIdentity& now) const {
  const std::lock_guard lock(first_->mutex);
  if (!first_->identity) first_->identity = now;
  if (now == *first_->identity) return;
  fail(location_, "has changed since it was opened (it had " + std::to_string(bytes()) +
                      " bytes and now has " + std::to_string(now.bytes) +
                      "): shards must stay as they are during a run; restore it and resume");
}

void Shard::check_scanned(const File& file, std::int64_t size) const {
  HeaderStart header{};
  if (size == bytes()) file.read(0, header.data(), sizeof(header));
  if (header == HeaderStart{format_.magic, format_.version, static_cast<std::int32_t>(tokens_)}) return;
  fail(location_, "has changed since rank 0 read it (" + std::to_string(tokens_) + " tokens of " +
                      std::to_string(format_.token_bytes) + " bytes, a file of " + std::to_string(bytes()) +
                      " bytes; here it has " + std::to_string(size) +
                      (size == bytes() ? " and another header" : "") +
                      "): shards must stay as they are during a run, and be the same on all hosts; restore "
                      "it and resume");
}

template <class Id>
void Shard::check_vocabulary(std::int64_t first, std::span<const Id> ids) const {
  Id largest = 0;
  for (const Id id : ids) largest = std::max(largest, id);
  if (largest < vocab_) return;
  const auto bad = std::find_if(ids.begin(), ids.end(), [&](Id id) { return id >= vocab_; });
  fail(location_, "token " + std::to_string(first + (bad - ids.begin())) + " has id " + std::to_string(*bad) +
                      ", but the vocabulary has " + std::to_string(vocab_) +
                      ": set model.vocab to that of the tokenizer, or prepare the shards with another one");
}

}  // namespace goat
