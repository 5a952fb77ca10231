// Files that are written whole or not at all, and what stands where they are to go.

#include "train/files/files.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "test/catch.h"
#include "test/temporary_folder.h"
#include "train/files/file_pieces.h"

using namespace goat;
namespace fs = std::filesystem;
using goat::test::TemporaryFolder;

namespace {

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> names_in(const TemporaryFolder& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path())) names.insert(entry.path().filename());
  return names;
}

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

std::string refusal(const fs::path& path) {
  try {
    write_file_atomically(path, "new");
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "written";
}

}  // namespace

TEST_CASE("files: without commit nothing is left and the old file stays; commit replaces it whole") {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.json", "old");
  {
    FileWriter file(path);
    file.write("new");
    CHECK(contents(path) == "old");
  }
  CHECK(contents(path) == "old");
  CHECK(names_in(folder) == std::set<std::string>{"a.json"});
  FileWriter file(path);
  file.write("n");
  file.write("ew");
  file.commit();
  CHECK(contents(path) == "new");
  CHECK(names_in(folder) == std::set<std::string>{"a.json"});
}

TEST_CASE("files: a new file has the permissions that the umask leaves, a replaced one keeps its own") {
  const TemporaryFolder folder;
  const mode_t before = ::umask(027);
  write_file_atomically(folder.file("new"), "x");
  ::umask(before);
  CHECK(mode_of(folder.file("new")) == 0640);
  ::chmod(folder.file("new").c_str(), 0604);
  write_file_atomically(folder.file("new"), "y");
  CHECK(mode_of(folder.file("new")) == 0604);
}

TEST_CASE(
    "files: a link is followed and stays, also where it leads to no file yet; a ring of links is refused") {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "there");
  folder.file("there/target", "old");
  fs::create_symlink("there/target", folder.path() / "link");
  fs::create_symlink("link", folder.path() / "link_to_link");
  write_file_atomically(folder.path() / "link_to_link", "new");
  CHECK(fs::is_symlink(folder.path() / "link_to_link"));
  CHECK(fs::is_symlink(folder.path() / "link"));
  CHECK(contents(folder.path() / "there/target") == "new");

  fs::create_symlink("there/not_yet", folder.path() / "dangling");
  write_file_atomically(folder.path() / "dangling", "fresh");
  CHECK(fs::is_symlink(folder.path() / "dangling"));
  CHECK(contents(folder.path() / "there/not_yet") == "fresh");

  fs::create_symlink("ring", folder.path() / "ring");
  CHECK_THAT(refusal(folder.path() / "ring"), ContainsSubstring("ring"));
  CHECK_FALSE(why_not_writable(folder.path() / "ring").empty());
}

TEST_CASE("files: a named pipe is written through and stays a pipe") {
  const TemporaryFolder folder;
  const std::string pipe = folder.file("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(why_not_writable(pipe).empty());
  const int reader = ::open(pipe.c_str(), O_RDWR | O_NONBLOCK);
  REQUIRE(reader >= 0);
  FileWriter file(pipe);
  file.write("through ");
  file.write("it");
  file.commit();
  char text[20] = {};
  CHECK(::read(reader, text, sizeof text) == 10);
  CHECK(std::string(text) == "through it");
  ::close(reader);
  CHECK(fs::is_fifo(pipe));
  CHECK(names_in(folder) == std::set<std::string>{"pipe"});
}

TEST_CASE("files: an open descriptor is written where it stands; a reader that has gone is no failure") {
  std::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const std::string path = "/dev/fd/" + std::to_string(ends[1]);
  CHECK(why_not_writable(path).empty());
  write_file_atomically(path, "abc");
  char text[4] = {};
  CHECK(::read(ends[0], text, 3) == 3);
  CHECK(std::string(text) == "abc");
  ::close(ends[0]);
  write_file_atomically(path, "nobody reads this");
  ::close(ends[1]);

  const TemporaryFolder folder;  // a file that is open: what was written before stays
  const int file = ::open(folder.file("log").c_str(), O_WRONLY | O_CREAT, 0600);
  REQUIRE(::write(file, "first ", 6) == 6);
  write_file_atomically("/proc/self/fd/" + std::to_string(file), "second");
  ::close(file);
  CHECK(contents(folder.file("log")) == "first second");
}

TEST_CASE("files: what is neither a file nor written through is refused and stays") {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "folder");
  CHECK_THAT(refusal(folder.path() / "folder"), ContainsSubstring("is a folder"));
  CHECK_THAT(why_not_writable(folder.path() / "folder"), ContainsSubstring("is a folder"));
  fs::create_symlink("folder", folder.path() / "link");
  CHECK_THAT(refusal(folder.path() / "link"), ContainsSubstring("is a folder"));

  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  folder.file("socket").copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  CHECK_THAT(refusal(folder.path() / "socket"), ContainsSubstring("neither"));
  CHECK_FALSE(why_not_writable(folder.path() / "socket").empty());
  ::close(socket);
  CHECK(fs::is_socket(folder.path() / "socket"));

  CHECK_THAT(why_not_writable(folder.path() / "no" / "file"), ContainsSubstring("no folder"));
  CHECK_THAT(refusal("/dev/full"), ContainsSubstring("/dev/full"));
  CHECK(why_not_writable(folder.path() / "new").empty());
  CHECK(why_not_writable("/dev/null").empty());
  CHECK(names_in(folder) == std::set<std::string>{"folder", "link", "socket"});
}

TEST_CASE("files: two writers of one file do not disturb each other, and a link in the way is not followed") {
  const TemporaryFolder folder;
  const std::string path = folder.file("a"), others = folder.file("others", "mine");
  fs::create_symlink(others, path + "." + std::to_string(::getpid()) + ".partial");
  FileWriter one(path), two(path);
  one.write("one");
  two.write("two!");
  two.commit();
  CHECK(contents(path) == "two!");
  one.commit();
  CHECK(contents(path) == "one");
  CHECK(contents(others) == "mine");
  CHECK(fs::is_symlink(path + "." + std::to_string(::getpid()) + ".partial"));
  CHECK(names_in(folder).size() == 3);
}

TEST_CASE("files: pieces that follow each other are one, and each has the checksum of its own bytes") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a";
  create_file(path, 20);
  CHECK(contents(path) == std::string(20, '\0'));
  CHECK_THROWS_WITH(create_file(path, 5), ContainsSubstring("File exists"));
  {
    PieceWriter writer(path), other(path);
    writer.write(2, "abc");
    other.write(5, "-");
    writer.write(5, "");
    writer.write(6, "de");
    writer.write(8, "f");
    other.write(12, "--");
    const std::vector<FilePiece> pieces = writer.commit();
    CHECK(pieces == std::vector<FilePiece>{{2, 3, checksum_of("abc")}, {6, 3, checksum_of("def")}});
    CHECK(other.commit().size() == 2);
    for (const FilePiece& piece : pieces)
      CHECK(checksum_of_range(path, piece.offset, piece.bytes) == piece.checksum);
  }
  const std::string zeros(6, '\0');
  CHECK(contents(path) == zeros.substr(0, 2) + "abc-def" + zeros.substr(0, 3) + "--" + zeros);
  CHECK(checksum_of_range(path, 20, 0) == checksum_of(""));
  CHECK_THROWS_WITH(checksum_of_range(path, 10, 11), ContainsSubstring("cut short"));
  CHECK_THROWS_WITH(checksum_of_range(folder.path() / "b", 0, 1), ContainsSubstring("No such file"));
}

TEST_CASE("files: a file that another host has just made is waited for") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a";
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    create_file(path, 3);
  });
  PieceWriter writer(path);
  other.join();
  writer.write(0, "abc");
  writer.commit();
  CHECK(contents(path) == "abc");
}
