// Files that several processes write together, each its own ranges of bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/checksum.h"

namespace goat {

// Consecutive bytes of a file that one process wrote.
struct FilePiece {
  std::uint64_t offset = 0, bytes = 0;
  std::string checksum{};  // XXH3, see Checksum
  bool operator==(const FilePiece&) const = default;
};

// How long a file that another host has just made may stay unseen here: network file systems look at names
// that they know, or know to be missing, only every few seconds.
inline constexpr int seconds_until_seen = 5;

// Waits until seen() says true, at most seconds_until_seen, and returns what it said last. Opens the folder
// of `path` between the questions, which makes a network file system look again.
bool await_file(const std::filesystem::path& path, const std::function<bool()>& seen);

// Makes a file of so many zero bytes that take no space yet. Throws std::runtime_error, also if it exists.
void create_file(const std::filesystem::path& path, std::uint64_t bytes);

// Writes pieces of a file that has its full size already: a network file system that believes the file to be
// shorter would fill its last page up with zeros, over what another host writes there.
class PieceWriter {
 public:
  // All members throw std::runtime_error with the file and the reason. The file may have been created by
  // another host just now.
  explicit PieceWriter(const std::filesystem::path& path);
  ~PieceWriter();
  PieceWriter(const PieceWriter&) = delete;
  PieceWriter& operator=(const PieceWriter&) = delete;

  // Continues the piece that ends at `offset`, or begins another one.
  void write(std::uint64_t offset, std::string_view bytes);
  std::vector<FilePiece> commit();  // fsync; returns the pieces in the order of writing

 private:
  void finish_piece();

  std::filesystem::path path_;
  int file_ = -1;
  std::vector<FilePiece> pieces_;
  std::optional<Checksum> checksum_;  // of the last of pieces_
};

// Throws std::runtime_error if the file ends before the range does, or cannot be read.
std::string checksum_of_range(const std::filesystem::path& path, std::uint64_t offset, std::uint64_t bytes);

}  // namespace goat
