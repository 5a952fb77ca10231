// Memory that processes of one host share, under a name in /dev/shm until remove_name().
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace goat {

class SharedSegment {
 public:
  // A new segment of zeros. One of that name whose creator has ended is replaced. Throws std::runtime_error
  // if the creator lives, or if memory is short.
  static SharedSegment create(const std::string& name, std::size_t bytes);
  // The segment of that name as it stands, or nullopt if there is none or it has no memory yet.
  static std::optional<SharedSegment> open(const std::string& name);

  // Removes a name (without '/'), whoever has created it; nothing if there is none.
  static void remove(const std::string& name) noexcept;
  // Removes the names in /dev/shm, `prefix` (without '/') and digits, that this user's killed processes have
  // left. Spares those whose creator lives, and those younger than a minute, whose creator may not hold its
  // lock yet.
  static void remove_left_over(const std::string& prefix) noexcept;

  SharedSegment(SharedSegment&& other) noexcept
      : name_(std::move(other.name_)),
        file_(std::exchange(other.file_, -1)),
        memory_(std::exchange(other.memory_, nullptr)),
        bytes_(other.bytes_),
        created_(std::exchange(other.created_, false)) {}
  SharedSegment& operator=(SharedSegment&&) = delete;
  ~SharedSegment();  // leaves the name, unless this object has created the segment

  void* data() const { return memory_; }
  std::size_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }

  // The memory stays until the last process leaves it. Does nothing if the name is gone or names another
  // segment.
  void remove_name() noexcept;

 private:
  SharedSegment(std::string name, int file) : name_(std::move(name)), file_(file) {}
  void map(std::size_t bytes);

  std::string name_;
  int file_;  // while it is open its creator holds a lock on it, by which others see that the creator lives
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  bool created_ = false;
};

}  // namespace goat
