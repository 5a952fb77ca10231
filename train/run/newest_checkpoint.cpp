#include "train/run/newest_checkpoint.h"

#include <sstream>

#include "data/data_error.h"
#include "train/files/file_pieces.h"
#include "train/files/files.h"
#include "train/replicas/on_all_ranks.h"
#include "train/run/checkpoint.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
std::string read_manifest(const fs::path& path) {
  if (!fs::exists(path))
    throw DataError(path.parent_path().string() + ": no " + manifest_file + ": not a complete checkpoint");
  try {
    return read_small_file(path);
  } catch (const std::runtime_error& error) {
    throw DataError(error.what());
  }
}

void verify_size(const fs::path& path, std::uint64_t expected) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  if (error) throw DataError(path.string() + ": listed in " + manifest_file + " but missing");
  if (bytes != expected)
    throw DataError(path.string() + ": " + std::to_string(bytes) + " bytes, expected " +
                    std::to_string(expected));
}

void verify_piece(const fs::path& path, const FilePiece& piece, bool whole) {
  std::string checksum;
  try {
    checksum = checksum_of_range(path, piece.offset, piece.bytes);
  } catch (const std::runtime_error& error) {
    throw DataError(error.what());
  }
  if (checksum == piece.checksum) return;
  const std::string range =
      std::to_string(piece.offset) + "-" + std::to_string(piece.offset + piece.bytes - 1);
  throw DataError(
      path.string() + ": " +
      (whole ? "its checksum does not match " : "the checksum of bytes " + range + " does not match ") +
      manifest_file + "; the file is damaged");
}

bool is_needed(const Manifest::File& file, Needed needed) {
  return needed == Needed::everything || file.name == model_file;
}

void verify_sizes(const fs::path& folder, const Manifest& manifest, Needed needed) {
  for (const Manifest::File& file : manifest.files)
    if (is_needed(file, needed)) verify_size(folder / file.name, file.bytes);
}

// Checks piece `rank` of all that are needed, and every further `ranks`-th one.
void verify_share(const fs::path& folder, const Manifest& manifest, Needed needed, int rank, int ranks) {
  int number = 0;
  for (const Manifest::File& file : manifest.files)
    if (is_needed(file, needed))
      for (const FilePiece& piece : file.pieces)
        if (number++ % ranks == rank) verify_piece(folder / file.name, piece, file.pieces.size() == 1);
}
}  // namespace

Manifest verify_checkpoint(const fs::path& folder, Needed needed) {
  RankGroup alone(Launch{}, {});
  return verify_checkpoint(folder, needed, alone);
}

Manifest verify_checkpoint(const fs::path& folder, Needed needed, RankGroup& group) {
  const fs::path path = folder / manifest_file;
  Manifest manifest;
  const std::string text = on_rank_0(group, "the state of a checkpoint", [&] {
    std::string contents = read_manifest(path);
    manifest = parse_manifest(contents, path.string());
    verify_sizes(folder, manifest, needed);
    return contents;
  });
  on_all_ranks(group, "the check of a checkpoint", [&] {
    if (group.rank() != 0) {
      manifest = parse_manifest(text, path.string());
      verify_sizes(folder, manifest, needed);  // this host may not see what rank 0 does
    }
    verify_share(folder, manifest, needed, group.rank(), group.size());
    return std::string();
  });
  return manifest;
}

std::optional<FoundCheckpoint> newest_checkpoint(const fs::path& run, Needed needed,
                                                 const std::function<void(const std::string&)>& warn) {
  RankGroup alone(Launch{}, {});
  return newest_checkpoint(run, needed, warn, alone);
}

std::optional<FoundCheckpoint> newest_checkpoint(const fs::path& run, Needed needed,
                                                 const std::function<void(const std::string&)>& warn,
                                                 RankGroup& group) {
  std::istringstream names(on_rank_0(group, "the names of the checkpoints", [&] {
    std::string lines;
    for (const fs::path& folder : checkpoint_folders(run)) lines += folder.filename().string() + "\n";
    return lines;
  }));
  std::vector<fs::path> damaged;
  for (std::string name; std::getline(names, name);) {
    const fs::path folder = run / "checkpoints" / name;
    try {
      return FoundCheckpoint{folder, verify_checkpoint(folder, needed, group), damaged};
    } catch (const RunFailed&) {
      throw;
    } catch (const std::runtime_error& error) {
      damaged.push_back(folder);
      if (group.rank() == 0) warn(std::string(error.what()) + "; trying the checkpoint before it");
    }
  }
  return std::nullopt;
}

}  // namespace goat
