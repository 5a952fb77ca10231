#include "train/ranks/hello_check.h"

#include <algorithm>

namespace goat {

namespace {

constexpr int wrong_command = 2;

std::string shown(const std::string& value) {
  constexpr std::size_t most = 200;
  if (value.empty()) return "nothing";
  return "'" + (value.size() > most ? value.substr(0, most) + "..." : value) + "'";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

std::string line_at(const std::vector<std::string>& lines, std::size_t index) {
  return index < lines.size() ? shown(lines[index]) : "no such line";
}

const Field* field_called(const Hello& hello, const std::string& name) {
  const auto found = std::find_if(hello.fields.begin(), hello.fields.end(),
                                  [&](const Field& field) { return field.name == name; });
  return found == hello.fields.end() ? nullptr : &*found;
}

// What is wrong with the places that the launcher gave them.
std::string wrong_place(const Hello& hello, const std::vector<const Hello*>& before) {
  const Hello& first = *before.front();
  if (hello.size != first.size)
    return name_of(hello.peer) + " is one of " + std::to_string(hello.size) + " ranks, " +
           name_of(first.peer) + " one of " + std::to_string(first.size);
  if (hello.peer.rank < 0 || hello.peer.rank >= hello.size)
    return name_of(hello.peer) + " is out of range: there are " + std::to_string(hello.size) + " ranks";
  for (const Hello* other : before)
    if (other->peer.rank == hello.peer.rank)
      return "two processes are the same rank: " + name_of(other->peer) + " and " + name_of(hello.peer);
  return "";
}

std::string wrong_field(const Hello& hello, const std::vector<const Hello*>& before) {
  const Hello& first = *before.front();
  for (const Field& field : first.fields) {
    const Field* const own = field_called(hello, field.name);
    if (!own) return name_of(hello.peer) + " does not tell its " + field.name;
    if (field.rule == Field::Rule::equal && own->value != field.value)
      return name_of(first.peer) + " and " + name_of(hello.peer) + " differ in " + field.name + ": " +
             difference(field.value, own->value, "rank " + std::to_string(first.peer.rank),
                        "rank " + std::to_string(hello.peer.rank));
    if (field.rule != Field::Rule::distinct || own->value.empty()) continue;
    for (const Hello* other : before)
      if (const Field* const theirs = field_called(*other, field.name); theirs && theirs->value == own->value)
        return name_of(other->peer) + " and " + name_of(hello.peer) + " have the same " + field.name + ": " +
               shown(own->value);
  }
  for (const Field& own : hello.fields)
    if (!field_called(first, own.name)) return name_of(first.peer) + " does not tell its " + own.name;
  return "";
}

}  // namespace

std::string difference(const std::string& here, const std::string& there, const std::string& name_here,
                       const std::string& name_there) {
  const std::vector<std::string> ours = lines_of(here), theirs = lines_of(there);
  if (ours.size() <= 1 && theirs.size() <= 1)
    return name_here + " has " + shown(here) + ", " + name_there + " has " + shown(there);
  std::string section;
  std::size_t line = 0;
  while (line < std::min(ours.size(), theirs.size()) && ours[line] == theirs[line]) {
    if (ours[line].starts_with('[')) section = " " + ours[line];
    ++line;
  }
  return "line " + std::to_string(line + 1) + section + ", " + name_here + " has " + line_at(ours, line) +
         ", " + name_there + " has " + line_at(theirs, line);
}

std::optional<Failure> why_not(const Hello& hello, const std::vector<const Hello*>& before) {
  std::string reason = wrong_place(hello, before);
  if (reason.empty()) reason = wrong_field(hello, before);
  if (reason.empty()) return std::nullopt;
  return Failure{hello.peer.rank, reason, wrong_command};
}

}  // namespace goat
