// Passes on what several processes write, by whole lines, each with its rank before it.
#pragma once

#include <chrono>
#include <map>
#include <string>

namespace goat {

class LineRelay {
 public:
  explicit LineRelay(int output) : output_(output) {}

  // Reads once from a descriptor that does not block. False at its end.
  bool read_some(int input, int rank);
  void read_all(int input, int rank);  // all that is there; nothing if input < 0
  void add_line(const std::string& line);

  bool waiting() const { return !queue_.empty(); }
  bool full() const { return queue_.size() >= 1 << 16; }  // nothing more should be read
  void write_some();                                      // call it when the output takes bytes
  // Also lines that did not end; gives up when the output takes nothing for so long.
  void finish(std::chrono::milliseconds patience);

 private:
  void take_lines(int rank, bool all);

  int output_;
  std::map<int, std::string> begun_;  // lines whose end has not come
  std::string queue_;
};

}  // namespace goat
