#include "train/run/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "data/data_error.h"
#include "train/files/file_pieces.h"
#include "train/files/files.h"
#include "train/files/safetensors.h"
#include "train/replicas/on_all_ranks.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
constexpr const char* optimizer_file = "optimizer.safetensors";
const std::string replaced_suffix = ".old";

std::string step_name(std::int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step_%08lld", static_cast<long long>(step));
  return name;
}

// The step in a folder name made by step_name, or -1 for any other name.
std::int64_t step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with("step_") || name.size() < 13 || name.size() > 23) return -1;
  if (!std::all_of(name.begin() + 5, name.end(), [](char c) { return c >= '0' && c <= '9'; })) return -1;
  const std::int64_t step = std::stoll(name.substr(5));
  return step_name(step) == name ? step : -1;
}

// A folder left by a program that was killed while it saved or removed a checkpoint.
bool is_leftover(const fs::path& folder) { return folder.filename().string().starts_with(".step_"); }

using Kind = ParameterSet::Kind;

// A file of tensors. All places in it are known before anything is written.
struct TensorFile {
  std::string name;
  std::vector<Kind> kinds;  // the stored tensors' elements of each, one kind after the other
  std::vector<SafetensorsEntry> entries{};
  std::string header{};

  std::uint64_t bytes() const { return header.size() + (entries.empty() ? 0 : entries.back().end); }
};

TensorFile tensor_file(const char* name, const std::vector<std::string>& prefixes,
                       const std::vector<Kind>& kinds, std::int64_t step, const ParameterSet& parameters) {
  TensorFile file{name, kinds};
  for (const std::string& prefix : prefixes)
    for (const StoredTensor& tensor : parameters.stored())
      file.entries.push_back({prefix + tensor.name, tensor.shape});
  file.header = safetensors_header(file.entries, {{"format", "pt"}, {"step", std::to_string(step)}});
  return file;
}

std::vector<TensorFile> tensor_files(std::int64_t step, const ParameterSet& parameters) {
  return {tensor_file(model_file, {""}, {Kind::value}, step, parameters),
          tensor_file(optimizer_file, {"m.", "v."}, {Kind::m, Kind::v}, step, parameters)};
}

// Writes this rank's pieces of the tensors, and rank 0 the header.
std::vector<FilePiece> write_own_pieces(const fs::path& folder, const TensorFile& file, int rank,
                                        Device& device, const ParameterSet& parameters) {
  PieceWriter writer(folder / file.name);
  if (rank == 0) writer.write(0, file.header);
  const std::size_t count = parameters.stored().size();
  for (std::size_t i = 0; i < file.entries.size(); ++i)
    parameters.read_pieces(
        device, parameters.stored()[i % count], file.kinds[i / count],
        [&](std::int64_t first, std::span<const float> elements) {
          writer.write(file.header.size() + file.entries[i].begin + static_cast<std::uint64_t>(first) * 4,
                       {reinterpret_cast<const char*>(elements.data()), elements.size_bytes()});
        });
  return writer.commit();
}

// What a rank has written of each file, for rank 0.
std::string pieces_text(const std::vector<std::vector<FilePiece>>& files) {
  std::ostringstream text;
  for (std::size_t file = 0; file < files.size(); ++file)
    for (const FilePiece& piece : files[file])
      text << file << ' ' << piece.offset << ' ' << piece.bytes << ' ' << piece.checksum << '\n';
  return text.str();
}

// All ranks' pieces of each file, in order.
std::vector<Manifest::File> files_of(const std::vector<TensorFile>& files,
                                     const std::vector<std::string>& texts) {
  std::vector<Manifest::File> result;
  for (const TensorFile& file : files) result.push_back({file.name, file.bytes()});
  for (const std::string& text : texts) {
    std::istringstream lines(text);
    std::size_t file = 0;
    for (FilePiece piece; lines >> file >> piece.offset >> piece.bytes >> piece.checksum;)
      result.at(file).pieces.push_back(piece);
  }
  for (Manifest::File& file : result) {
    std::ranges::sort(file.pieces, {}, &FilePiece::offset);
    std::uint64_t end = 0;
    bool covered = true;
    for (const FilePiece& piece : file.pieces) {
      covered = covered && piece.offset == end;
      end += piece.bytes;
    }
    if (!covered || end != file.bytes)
      throw std::logic_error(file.name + ": the ranks' pieces do not cover the file");
  }
  return result;
}

// The folders of a save.
struct Places {
  fs::path folder, unfinished;
  fs::path replaced;  // an older checkpoint of the same step (before a resume) until the new one is in place

  Places(const fs::path& run, std::int64_t step)
      : folder(run / "checkpoints" / step_name(step)),
        unfinished(run / "checkpoints" / ("." + step_name(step))),
        replaced(unfinished.string() + replaced_suffix) {}

  void begin(const std::vector<TensorFile>& files) const {
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);
    fs::create_directories(unfinished);
    for (const TensorFile& file : files) create_file(unfinished / file.name, file.bytes());
  }
  void finish(const Manifest& manifest) const {
    std::error_code ignored;
    write_file_atomically(unfinished / manifest_file, manifest_text(manifest));
    if (fs::exists(folder)) fs::rename(folder, replaced);
    fs::rename(unfinished, folder);
    fs::remove_all(replaced, ignored);
    sync_folder(folder.parent_path());
  }
  void undo() const {
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);
    if (fs::exists(replaced) && !fs::exists(folder)) fs::rename(replaced, folder, ignored);
  }
};

void load_tensors(const fs::path& path, const std::string& prefix, ParameterSet::Kind kind, Device& device,
                  const ParameterSet& parameters, std::size_t tensors) {
  SafetensorsReader file(path);
  if (file.entries().size() != tensors)
    throw DataError(path.string() + ": holds " + std::to_string(file.entries().size()) +
                    " tensors where this model has " + std::to_string(tensors) +
                    "; is it another model's checkpoint?");
  for (const StoredTensor& tensor : parameters.stored()) {
    const SafetensorsEntry& entry = file.find(prefix + tensor.name, tensor.shape);
    parameters.write_pieces(device, tensor, kind, [&](std::int64_t first, std::span<float> elements) {
      file.read(entry, first, elements);
    });
  }
}

}  // namespace

std::vector<fs::path> checkpoint_folders(const fs::path& run) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", error))
    if (entry.is_directory() && step_of(entry.path()) >= 0) folders.push_back(entry.path());
  std::ranges::sort(folders, std::greater{}, step_of);
  return folders;
}

fs::path save_checkpoint(const fs::path& run, const Config& config, const RunState& state,
                         const DataRecord& data, Device& device, const ParameterSet& parameters,
                         RankGroup& group) {
  const Places places(run, state.step);
  const std::vector<TensorFile> files = tensor_files(state.step, parameters);
  const bool first = group.rank() == 0;
  try {
    on_all_ranks(group, "the begin of a checkpoint", [&] {
      if (first) places.begin(files);
      return std::string();
    });
    const std::vector<std::string> pieces = on_all_ranks(group, "the pieces of a checkpoint", [&] {
      std::vector<std::vector<FilePiece>> own;
      for (const TensorFile& file : files)
        own.push_back(write_own_pieces(places.unfinished, file, group.rank(), device, parameters));
      return pieces_text(own);
    });
    on_all_ranks(group, "the end of a checkpoint", [&] {
      if (first) places.finish({state, to_toml(config), data, files_of(files, pieces)});
      return std::string();
    });
  } catch (...) {
    if (first) places.undo();
    throw;
  }
  return places.folder;
}

void load_model(const fs::path& folder, Device& device, const ParameterSet& parameters) {
  load_tensors(folder / model_file, "", ParameterSet::Kind::value, device, parameters,
               parameters.stored().size());
}

void load_optimizer(const fs::path& folder, Device& device, const ParameterSet& parameters) {
  load_tensors(folder / optimizer_file, "m.", ParameterSet::Kind::m, device, parameters,
               2 * parameters.stored().size());
  load_tensors(folder / optimizer_file, "v.", ParameterSet::Kind::v, device, parameters,
               2 * parameters.stored().size());
}

void remove_leftovers(const fs::path& run) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", error))
    if (is_leftover(entry.path())) leftovers.push_back(entry.path());
  for (const fs::path& path : leftovers) {
    const std::string name = path.filename().string();
    if (!name.ends_with(replaced_suffix)) continue;
    // A save was killed between its two renames: put the checkpoint back that it was about to replace.
    const fs::path folder = path.parent_path() / name.substr(1, name.size() - 1 - replaced_suffix.size());
    if (!fs::exists(folder, error)) fs::rename(path, folder, error);
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
}

void remove_old_checkpoints(const fs::path& run, std::int64_t keep, std::int64_t milestone,
                            const fs::path& newest, const std::vector<fs::path>& damaged) {
  remove_leftovers(run);
  if (keep == 0) return;
  std::error_code error;
  std::int64_t newer = 0;
  for (const fs::path& folder : checkpoint_folders(run)) {
    if (step_of(folder) > step_of(newest)) continue;  // damaged: a resume would have used it
    if (!fs::exists(folder / manifest_file, error)) continue;
    if (folder != newest && std::ranges::count(damaged, folder) > 0) continue;
    const bool is_recent = newer++ < keep;
    const bool is_milestone = milestone > 0 && step_of(folder) % milestone == 0;
    if (is_recent || is_milestone) continue;
    // The folder is renamed first, so that no step_* folder is ever half removed.
    const fs::path hidden = folder.parent_path() / ("." + folder.filename().string());
    fs::rename(folder, hidden, error);
    if (!error) fs::remove_all(hidden, error);
  }
}

}  // namespace goat
