#include "train/files/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace goat {

namespace fs = std::filesystem;

std::runtime_error file_error(const char* what, const fs::path& path) {
  return std::runtime_error(std::string("cannot ") + what + " " + path.string() + ": " +
                            std::strerror(errno));
}

namespace {
// Writes all bytes. Returns false, with errno set, if it cannot.
bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}
}  // namespace

namespace {
// N if `path` names the open descriptor N of this process (/dev/fd/N, /dev/stdout, /proc/self/fd/N).
std::optional<int> descriptor_named_by(const fs::path& path) {
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(path.parent_path(), error);
  const std::string name = path.filename();
  if (error || folder != "/proc/" + std::to_string(::getpid()) + "/fd") return std::nullopt;
  int number = -1;
  const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), number);
  return bad == std::errc{} && end == name.data() + name.size() ? std::optional(number) : std::nullopt;
}

// The file that a path means for writing.
struct Target {
  fs::path path;                  // after following symbolic links, even to a file that does not exist yet
  std::optional<int> descriptor;  // if the path names an open file of this process
  fs::file_type type = fs::file_type::not_found;
  mode_t mode = 0;  // of a regular file

  bool written_through() const {
    return descriptor || type == fs::file_type::fifo || type == fs::file_type::character;
  }
};

Target target_of(const fs::path& path) {
  constexpr int most_links = 40;
  Target target{.path = path, .descriptor = descriptor_named_by(path)};
  for (int links = 0; !target.descriptor && fs::is_symlink(fs::symlink_status(target.path)); ++links) {
    if (links == most_links) {
      errno = ELOOP;
      throw file_error("write", path);
    }
    target.path = target.path.parent_path() / fs::read_symlink(target.path);
    target.descriptor = descriptor_named_by(target.path);
  }
  struct stat status {};
  if (::stat(target.path.c_str(), &status) == 0) {
    target.type = fs::status(target.path).type();
    target.mode = status.st_mode & 0777;
  }
  return target;
}

std::string refusal(const Target& target) {
  if (target.descriptor) return "";
  switch (target.type) {
    case fs::file_type::not_found:
    case fs::file_type::regular:
    case fs::file_type::fifo:
    case fs::file_type::character: return "";
    case fs::file_type::directory: return "is a folder; give the name of a file";
    default: return "is neither a file nor a pipe nor a character device";
  }
}
}  // namespace

std::string why_not_writable(const fs::path& path) {
  try {
    const Target target = target_of(path);
    if (target.descriptor || !refusal(target).empty()) return refusal(target);
    const fs::path folder = target.path.has_parent_path() ? target.path.parent_path() : fs::path(".");
    if (!fs::is_directory(folder)) return "there is no folder " + folder.string();
    const bool exists = target.type != fs::file_type::not_found;
    if ((exists && ::access(target.path.c_str(), W_OK) != 0) ||
        (!target.written_through() && ::access(folder.c_str(), W_OK | X_OK) != 0))
      return std::string("cannot be written: ") + std::strerror(errno);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

FileWriter::FileWriter(const fs::path& path) : path_(path) {
  const Target target = target_of(path);
  if (const std::string reason = refusal(target); !reason.empty())
    throw std::runtime_error("cannot write " + path.string() + ": it " + reason);
  if (!target.written_through()) {
    path_ = target.path;
    const bool replaces = target.type == fs::file_type::regular;
    if (replaces && ::access(path_.c_str(), W_OK) != 0) throw file_error("write", path);
    create_partial(replaces ? target.mode : 0);
    return;
  }
  std::fflush(stdout);  // keeps the order if both write to the same place
  file_ = target.descriptor ? ::fcntl(*target.descriptor, F_DUPFD_CLOEXEC, 3)
                            : ::open(target.path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  if (file_ < 0) throw file_error("write", path);
}

// Creates the temporary file. mode 0: the default mode of a new file.
void FileWriter::create_partial(mode_t mode) {
  constexpr int most_tries = 1000;
  const std::string stem = path_.string() + "." + std::to_string(::getpid());
  for (int number = 0; file_ < 0; ++number) {
    temporary_ = stem + (number > 0 ? "." + std::to_string(number) : "") + ".partial";
    // O_EXCL: does not follow a link.
    file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ < 0 && (errno != EEXIST || number == most_tries)) throw file_error("create", temporary_);
  }
  if (mode != 0) ::fchmod(file_, mode);
}

FileWriter::~FileWriter() {
  if (file_ < 0) return;
  ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void FileWriter::write(std::string_view bytes) {
  if (!write_all(file_, bytes) && !(temporary_.empty() && errno == EPIPE)) throw file_error("write", path_);
}

void FileWriter::commit() {
  if (temporary_.empty()) {
    if (::close(std::exchange(file_, -1)) != 0) throw file_error("write", path_);
    return;
  }
  if (::fsync(file_) != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0)
    throw file_error("write", path_);
  ::close(std::exchange(file_, -1));
  sync_folder(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
}

void write_file_atomically(const fs::path& path, std::string_view contents) {
  FileWriter file(path);
  file.write(contents);
  file.commit();
}

std::string read_small_file(const fs::path& path) {
  constexpr std::uintmax_t limit = std::uintmax_t{64} << 20;
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) throw file_error("read", path);
  if (size > limit)
    throw std::runtime_error("cannot read " + path.string() + ": " + std::to_string(size) +
                             " bytes are more than such a file has");
  std::string contents(static_cast<std::size_t>(size), '\0');
  file.read(contents.data(), static_cast<std::streamsize>(size));
  contents.resize(static_cast<std::size_t>(file.gcount()));
  return contents;
}

void sync_folder(const fs::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // Not every file system can open a folder. The rename itself has succeeded.
  if (file < 0) return;
  ::fsync(file);
  ::close(file);
}

LineLog::LineLog(const fs::path& path, std::uint64_t keep_bytes)
    : path_(path), size_(static_cast<long long>(keep_bytes)) {
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) throw file_error("create", path);
  if (::ftruncate(file_, size_) != 0) {
    const std::runtime_error error = file_error("write", path);
    ::close(file_);
    throw error;
  }
}

LineLog::~LineLog() { ::close(file_); }

void LineLog::write(const std::string& line) {
  const bool good = ::lseek(file_, size_, SEEK_SET) == size_ && write_all(file_, line + "\n");
  if (good) {
    size_ += static_cast<long long>(line.size()) + 1;
  } else {
    const int reason = errno;
    const bool taken_back = ::ftruncate(file_, size_) == 0;
    if (!failing_)
      std::fprintf(stderr, "warning: cannot write %s: %s; training goes on, lines are lost%s\n",
                   path_.c_str(), std::strerror(reason),
                   taken_back ? "" : " and the last one may be cut short");
  }
  failing_ = !good;
}

}  // namespace goat
