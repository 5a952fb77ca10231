#include "train/ranks/host_list.h"

#include <algorithm>

#include "train/ranks/ranks_error.h"

namespace goat {

namespace {

bool is_name(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
         c == '.';
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

class HostList {
 public:
  explicit HostList(std::string_view list) : list_(list) {}

  std::string first() {
    const std::string first = host();
    while (at_ < list_.size()) {  // the rest is read too: a list that is cut off is no list
      if (list_[at_++] != ',') refuse("a comma is expected");
      host();
    }
    return first;
  }

 private:
  std::string host() {
    std::string name;
    while (at_ < list_.size() && list_[at_] != ',') {
      const char c = list_[at_++];
      if (c == '[') {
        name += ranges();
      } else if (is_name(c)) {
        name += c;
      } else {
        refuse(std::string("'") + c + "' is not part of a host's name");
      }
    }
    if (name.empty()) refuse("a host's name is empty");
    return name;
  }

  // 01-03,7] : the first number, as it is written.
  std::string ranges() {
    const std::size_t end = list_.find(']', at_);
    if (end == std::string_view::npos) refuse("']' is missing");
    std::string first;
    for (bool more = true; more;) {
      const std::size_t comma = std::min(list_.find(',', at_), end);
      const std::string_view range = list_.substr(at_, comma - at_);
      const std::size_t dash = range.find('-');
      const std::string_view low = range.substr(0, dash);
      if (!all_digits(low) || (dash != std::string_view::npos && !all_digits(range.substr(dash + 1))))
        refuse("'" + std::string(range) + "' is not a range of numbers");
      if (first.empty()) first = low;
      at_ = comma + 1;
      more = comma < end;
    }
    return first;
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw RanksError(
        "'" + std::string(list_) + "' is not a list of hosts such as node[01-03,7],other: " + why, 2);
  }

  std::string_view list_;
  std::size_t at_ = 0;
};

}  // namespace

std::string first_host(std::string_view list) { return HostList(list).first(); }

}  // namespace goat
