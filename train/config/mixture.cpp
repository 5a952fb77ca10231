#include "train/config/mixture.h"

#include <charconv>
#include <set>

namespace goat {

namespace {
[[noreturn]] void refuse(const std::string& what) {
  throw ConfigError("data.mixture: " + what +
                    "; expected \"WEIGHT GLOB, WEIGHT GLOB, ...\", as in \"0.7 data/c4/train_*.bin, 0.3 "
                    "data/code/train_*.bin\"");
}

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

// The parts between commas. A comma after a backslash does not count.
std::vector<std::string> entries_of(const std::string& text) {
  std::vector<std::string> entries(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ',') {
      entries.emplace_back();
      continue;
    }
    entries.back() += text[i];
    if (text[i] == '\\' && i + 1 < text.size()) entries.back() += text[++i];
  }
  return entries;
}

WeightedPattern parse_entry(const std::string& entry) {
  WeightedPattern part;
  const char* const end = entry.data() + entry.size();
  const auto [rest, error] = std::from_chars(entry.data(), end, part.weight);
  if (entry.empty()) refuse("an entry is empty");
  if (error == std::errc::invalid_argument || (rest != end && *rest != ' '))
    refuse("\"" + entry + "\" does not begin with a weight (a comma in a glob is written as \\,)");
  constexpr double greatest = 1e100;  // no sum of weights overflows
  if (error != std::errc() || !(part.weight > 0 && part.weight <= greatest))
    refuse("the weight of \"" + entry + "\" is not a positive number of at most 1e100");
  part.pattern = trimmed(std::string(rest, end));
  if (part.pattern.empty()) refuse("\"" + entry + "\" names no shards");
  return part;
}
}  // namespace

std::vector<WeightedPattern> parse_mixture(const std::string& text) {
  std::vector<WeightedPattern> parts;
  std::set<std::string> seen;
  for (const std::string& entry : entries_of(text)) {
    parts.push_back(parse_entry(trimmed(entry)));
    if (!seen.insert(parts.back().pattern).second)
      refuse("\"" + parts.back().pattern + "\" is there twice; add its weights");
  }
  double sum = 0;
  for (const WeightedPattern& part : parts) sum += part.weight;
  for (const WeightedPattern& part : parts)
    if (!(part.weight / sum >= 1e-6))
      refuse("the weight of \"" + part.pattern + "\" is less than a millionth of the sum of all weights");
  return parts;
}

std::string mixture_text(const std::vector<WeightedPattern>& parts) {
  std::string text;
  for (const WeightedPattern& part : parts) {
    char digits[32];
    text += text.empty() ? "" : ", ";
    text.append(digits, std::to_chars(digits, digits + sizeof digits, part.weight).ptr) += ' ';
    for (std::size_t i = 0; i < part.pattern.size(); ++i) {
      if (part.pattern[i] == ',') text += '\\';
      text += part.pattern[i];
      if (part.pattern[i] == '\\' && i + 1 < part.pattern.size()) text += part.pattern[++i];
    }
  }
  return text;
}

std::vector<std::string> training_patterns(const Config& config) {
  if (config.data.mixture.empty())
    return config.data.train.empty() ? std::vector<std::string>() : std::vector{config.data.train};
  std::vector<std::string> patterns;
  for (const WeightedPattern& part : parse_mixture(config.data.mixture)) patterns.push_back(part.pattern);
  return patterns;
}

}  // namespace goat
