#include "train/config/config.h"

#include <toml++/toml.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "train/config/config_keys.h"

namespace goat {
namespace {

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw ConfigError(where + ": " + what);
}

std::string at_line(const std::string& origin, const toml::source_region& source) {
  return origin + ":" + std::to_string(source.begin.line);
}

// Length in bytes of the UTF-8 character that starts at text[i], or 0 if no valid character starts there.
std::size_t utf8_length(const std::string& text, std::size_t i) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const std::size_t length = byte(i) < 0x80   ? 1
                             : byte(i) < 0xC2 ? 0
                             : byte(i) < 0xE0 ? 2
                             : byte(i) < 0xF0 ? 3
                             : byte(i) < 0xF5 ? 4
                                              : 0;
  if (i + length > text.size()) return 0;
  for (std::size_t k = 1; k < length; ++k)
    if ((byte(i + k) & 0xC0) != 0x80) return 0;
  return length;
}

// Makes foreign text safe for a message: one line of about 200 bytes at most, with '?' for each byte that
// cannot be printed.
std::string shown(const std::string& text) {
  constexpr std::size_t most = 200;
  std::string line;
  for (std::size_t i = 0; i < text.size();) {
    if (line.size() >= most) return line + "...";
    const std::size_t length = utf8_length(text, i);
    const bool printable = length > 1 || (length == 1 && !is_control(text[i]));
    line += printable ? text.substr(i, length) : "?";
    i += std::max<std::size_t>(length, 1);
  }
  return line;
}

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
}

const Key* find_key(const std::vector<Key>& keys, const std::string& name) {
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == name; });
  return found == keys.end() ? nullptr : &*found;
}

bool is_section(const std::vector<Key>& keys, const std::string& name) {
  const std::vector<std::string> sections = config_sections(keys);
  return std::find(sections.begin(), sections.end(), name) != sections.end();
}

// ------------------------------------------------------------------------------------------------ one value

// Each overload stores a TOML value and returns true. If the value's type does not fit, it stores nothing and
// returns false. A number key accepts an integer; an integer key never accepts a float.
bool store(const IntegerKey& slot, const toml::node& node) {
  if (!node.is_integer()) return false;
  *slot.value = node.as_integer()->get();
  return true;
}
bool store(const NumberKey& slot, const toml::node& node) {
  if (!node.is_number()) return false;
  *slot.value =
      node.is_integer() ? static_cast<double>(node.as_integer()->get()) : node.as_floating_point()->get();
  return true;
}
bool store(const FlagKey& slot, const toml::node& node) {
  if (!node.is_boolean()) return false;
  *slot.value = node.as_boolean()->get();
  return true;
}
// A sum is stored with its terms in the order of the choices, so that equal sums are equal texts. The choices
// "true" and "false" may stand without quotes.
bool store(const TextKey& slot, const toml::node& node) {
  if (node.is_boolean() && std::ranges::find(slot.choices, "true") != slot.choices.end()) {
    *slot.value = node.as_boolean()->get() ? "true" : "false";
    return true;
  }
  if (!node.is_string()) return false;
  *slot.value = node.as_string()->get();
  if (!slot.sums) return true;
  std::vector<std::string> terms = terms_of(*slot.value);
  std::ranges::stable_sort(terms, {}, [&](const std::string& term) {
    return std::ranges::find(slot.choices, term) - slot.choices.begin();
  });
  slot.value->clear();
  for (const std::string& term : terms) *slot.value += (&term == &terms.front() ? "" : "+") + term;
  return true;
}

std::string source_text(const toml::node& node) {
  if (node.is_table() || node.is_array()) return "...";
  if (node.is_string()) return shown(toml_string(node.as_string()->get()));
  std::ostringstream text;
  text << toml::toml_formatter{node};
  return shown(text.str());
}

const char* type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "an array";
    case toml::node_type::string: return "a string";
    case toml::node_type::integer: return "an integer";
    case toml::node_type::floating_point: return "a float";
    case toml::node_type::boolean: return "a boolean";
    default: return "a date or time";
  }
}

// Stores a value in `config`, to whose members `key` points. Throws ConfigError if its type or
// range is wrong.
void assign(Config& config, const Key& key, const toml::node& node, const std::string& where) {
  const bool fits = std::visit([&](const auto& slot) { return store(slot, node); }, key.slot);
  if (!fits)
    refuse(where, key.name + " = " + source_text(node) + " is " + type_name(node) + "; expected " +
                      expected_value(key));
  if (!value_allowed(key))
    refuse(where, key.name + " = " + source_text(node) + " is not allowed; expected " + expected_value(key));
  // Only one of the two keys sets the length of a run: the later setting wins.
  if (key.name == "train.steps" && config.train.steps > 0) config.train.tokens = 0;
  if (key.name == "train.tokens" && config.train.tokens > 0) config.train.steps = 0;
  if (key.name == "eval.tokens") config.eval.retired_batches = -1;
}

// ----------------------------------------------------------------------------------------------------- TOML

// The end of a message about a parse error: the line itself and, if the line sets a known key, the values
// that the key takes.
std::string about_line(const std::string& text, std::size_t number) {
  std::istringstream lines(text);
  std::string line, section;
  for (std::size_t i = 0; i < number && std::getline(lines, line); ++i) {
    line = trimmed(line);
    if (i + 1 < number && line.starts_with('[')) section = trimmed(line.substr(1, line.find(']') - 1)) + ".";
  }
  Config config;
  const std::vector<Key> keys = config_keys(config);
  const std::size_t equals = line.find('=');
  const Key* key =
      equals == std::string::npos ? nullptr : find_key(keys, section + trimmed(line.substr(0, equals)));
  const std::string shown_line = line.empty() ? "" : ", in the line \"" + shown(line) + "\"";
  return shown_line + (key ? "; " + key->name + " takes " + expected_value(*key) : "");
}

bool is_ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) > 0x7f; });
}

// Whether a line is KEY = "string" or KEY = 'string', with or without a comment after it.
bool is_quoted_value(std::string_view line) {
  const auto skip = [&line](std::string_view characters) {
    line.remove_prefix(std::min(line.find_first_not_of(characters), line.size()));
  };
  constexpr std::string_view blank = " \t\r";
  skip(blank);
  skip("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-. \t");
  if (!line.starts_with('=')) return false;
  line.remove_prefix(1);
  skip(blank);
  if (line.empty() || (line.front() != '"' && line.front() != '\'')) return false;
  std::size_t end = 1;
  for (; end < line.size() && line[end] != line.front(); ++end)
    if (line[end] == '\\' && line.front() == '"') ++end;
  if (end >= line.size()) return false;
  line.remove_prefix(end + 1);
  skip(blank);
  return line.empty() || line.front() == '#';
}

// What is wrong with a line on which toml++ 3.3 would not throw, but fail an assert or have undefined
// behaviour (found by fuzzing). These are: a character outside ASCII outside strings and comments, a lone
// carriage return, and some section names. Empty if the line is good.
std::string unparsable(const std::string& line) {
  if (const std::size_t at = line.find('\r'); at != std::string::npos && at + 1 < line.size())
    return "carriage return within a line; end lines with \\n or \\r\\n";
  for (const char c : line)
    if (is_control(c) && c != '\t' && c != '\r')
      return "control character with code " + std::to_string(c) + "; is this a text file?";
  const std::string text = trimmed(line);
  if (text.starts_with('#')) return "";
  if (text.find("\"\"\"") != std::string::npos || text.find("'''") != std::string::npos)
    return "a string stays on one line, in single quotes or double ones";
  const std::string before_comment = text.substr(0, text.find('#'));
  const bool plain = is_ascii(before_comment) && before_comment.find_first_of("\"'") == std::string::npos;
  if (!plain && !is_ascii(text) && !is_quoted_value(text))
    return "character outside ASCII that is neither in a comment nor in the quotes of KEY = \"string\"";
  if (!text.starts_with('[')) return "";
  const std::string name_starts = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-\"'";
  const std::string name = trimmed(text.substr(text.starts_with("[[") ? 2 : 1));
  return name.empty() || name_starts.find(name.front()) == std::string::npos
             ? "expected the name of a section after '['"
             : "";
}

void check_before_parsing(const std::string& text, const std::string& origin) {
  const std::string byte_order_mark = "\xEF\xBB\xBF";
  std::istringstream lines(text.starts_with(byte_order_mark) ? text.substr(byte_order_mark.size()) : text);
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number)
    if (const std::string problem = unparsable(line); !problem.empty())
      refuse(origin + ":" + std::to_string(number),
             "not valid TOML: " + problem + ", in the line \"" + shown(trimmed(line)) + "\"");
}

toml::table parsed(const std::string& text, const std::string& origin) {
  check_before_parsing(text, origin);
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    refuse(at_line(origin, error.source()), "not valid TOML: " + shown(std::string(error.description())) +
                                                about_line(text, error.source().begin.line));
  }
}

// Refuses a file that sets two keys of which one must be left out or 0.
void refuse_both(const toml::table& table, const char* section, const char* first, const char* second,
                 const char* why, const std::string& origin) {
  const toml::node_view a = table[section][first], b = table[section][second];
  if (a.value_or(std::int64_t{0}) <= 0 || b.value_or(std::int64_t{0}) <= 0) return;
  const auto equals = [&](const char* key, const toml::node_view<const toml::node>& value) {
    return std::string(section) + "." + key + " = " + std::to_string(value.value_or(std::int64_t{0}));
  };
  refuse(at_line(origin, b.node()->source()),
         equals(first, a) + " and " + equals(second, b) + " " + why + "; keep one");
}

// The keys of a config, and the keys of older versions.
struct KeyTable {
  std::vector<Key> keys, retired;
  explicit KeyTable(Config& config) : keys(config_keys(config)), retired(retired_keys(config)) {}
  const Key* find(const std::string& name) const {
    const Key* key = find_key(keys, name);
    return key ? key : find_key(retired, name);
  }
};

// Assigns every key of a table; `prefix` is the section with its dot, or empty.
void apply_table(Config& config, const KeyTable& known, const toml::table& table, const std::string& prefix,
                 const std::string& origin) {
  const std::vector<Key>& keys = known.keys;
  for (const auto& [toml_key, node] : table) {
    const std::string part(toml_key.str());
    const std::string name = prefix + part;
    const std::string where = at_line(origin, toml_key.source());
    if (part.find('.') != std::string::npos)
      refuse(where, "key \"" + shown(part) + "\": quotes make the dot part of the name; leave them out");
    if (const Key* key = known.find(name)) {
      assign(config, *key, node, where);
    } else if (is_section(keys, name)) {
      if (!node.is_table())
        refuse(where, name + " = " + source_text(node) + ": " + name +
                          " is a section, not a key; its keys go under [" + name + "]");
      apply_table(config, known, *node.as_table(), name + ".", origin);
    } else if (node.is_table()) {
      const std::string near = nearest(name, config_sections(keys));
      refuse(where, "unknown section [" + shown(name) + "]; " +
                        (near.empty() ? key_suggestion(name, keys) : "did you mean [" + near + "]?"));
    } else {
      refuse(where,
             "unknown key " + shown(name) + " (= " + source_text(node) + "); " + key_suggestion(name, keys));
    }
  }
}

// ---------------------------------------------------------------------------------------------------- --set

// The TOML value that `text` means, or nullopt if it is not a single value. Strings may be written without
// quotes and cannot have escapes.
std::optional<toml::table> setting_value(const Key& key, const std::string& text) {
  std::string value = text;
  if (std::holds_alternative<TextKey>(key.slot)) {
    const auto is_quote = [](char c) { return c == '"' || c == '\''; };
    if (value.size() >= 2 && is_quote(value.front()) && value.back() == value.front())
      value = value.substr(1, value.size() - 2);
    else if (!value.empty() && (is_quote(value.front()) || is_quote(value.back())))
      return std::nullopt;
    value = toml_string(value);
  } else if (value.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-._") !=
             std::string::npos) {
    return std::nullopt;  // more than one TOML token
  }
  try {
    return toml::parse("value = " + value);
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

// ------------------------------------------------------------------------------------------ names and files

std::string text_of_file(const std::string& path) {
  constexpr std::size_t most = 1 << 20;
  const auto unusable = [&](const std::string& why) { refuse("--config " + path, why); };
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::none) unusable(error.message());
  if (!std::filesystem::exists(status))
    unusable("no such file; --list-configs shows the built-in configurations");
  if (std::filesystem::is_directory(status))
    unusable("is a directory; name a .toml file, such as the config.toml in a run's folder");
  std::ifstream file(path, std::ios::binary);
  if (!file) unusable("cannot be opened for reading; check its permissions");
  std::string text(most + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) unusable("reading failed");
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > most) unusable("is larger than 1 MiB, so it is no configuration");
  if (trimmed(text).empty()) unusable("is empty; --print-config writes a complete one");
  return text;
}

bool names_a_file(const std::string& name) {
  return name.ends_with(".toml") || name.find('/') != std::string::npos;
}

const Preset& preset_of(const std::string& name) {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) {
    if (preset.name == name) return preset;
    names.push_back(preset.name);
  }
  const std::string near = nearest(name, names);
  std::error_code error;
  const bool is_file = !name.empty() && std::filesystem::exists(name, error);
  refuse("--config " + shown(name),
         "no built-in configuration has this name; " + (near.empty() ? "" : "did you mean " + near + "? ") +
             "--list-configs shows them all" +
             (is_file ? "; to read the file of this name, write ./" + shown(name)
                      : "; a file is named with .toml at its end or with its folder"));
}

}  // namespace

void apply_toml(Config& config, const std::string& text, const std::string& origin, const ConfigNotes& note) {
  const toml::table table = parsed(text, origin);
  Config next = config;
  apply_table(next, KeyTable(next), table, "", origin);
  refuse_both(table, "train", "steps", "tokens", "both set the length of the run", origin);
  refuse_both(table, "eval", "tokens", "batches", "both set the length of a validation", origin);
  resolve_retired(next, next.micro_batch(), note);  // as in the version that wrote the file
  config = next;
}

void apply_setting(Config& config, const std::string& setting) {
  const std::string where = "--set " + shown(setting);
  const std::size_t equals = setting.find('=');
  if (equals == std::string::npos)
    refuse(where, "there is no '='; expected section.key=value, as in --set train.steps=1000");
  const std::string name = trimmed(setting.substr(0, equals));
  const std::string text = trimmed(setting.substr(equals + 1));
  Config next = config;
  const KeyTable known(next);
  const std::vector<Key>& keys = known.keys;
  const Key* key = known.find(name);
  if (!key && is_section(keys, name))
    refuse(where, name + " is a section; set one of its keys, as in --set train.steps=1000");
  if (!key)
    refuse(where, name.empty() ? "there is no key before the '='; expected section.key=value"
                               : "unknown key " + shown(name) + "; " + key_suggestion(name, keys));
  const std::optional<toml::table> value = setting_value(*key, text);
  if (!value) {
    const bool is_text = std::holds_alternative<TextKey>(key->slot),
               is_number = std::holds_alternative<NumberKey>(key->slot);
    const char* how = is_text     ? ", in UTF-8, with both of its quotes or none"
                      : is_number ? ", written as 0.5 or 1e-3"
                                  : "";
    refuse(where, key->name + " = " + (text.empty() ? "nothing" : shown(text)) +
                      " is not allowed; expected " + expected_value(*key) + how);
  }
  assign(next, *key, *value->get("value"), where);
  config = next;
}

void resolve_retired(Config& config, std::int64_t sequences, const ConfigNotes& note) {
  const std::int64_t batches = std::exchange(config.eval.retired_batches, -1);
  if (batches < 0) return;
  const std::int64_t length = config.data.seq_len;
  if (__builtin_mul_overflow(batches, sequences, &config.eval.tokens) ||
      __builtin_mul_overflow(config.eval.tokens, length, &config.eval.tokens))
    throw ConfigError("eval.batches = " + std::to_string(batches) + " batches of " +
                      std::to_string(sequences) + " sequences of " + std::to_string(length) +
                      " tokens cannot be counted in 64 bits; set eval.tokens");
  if (note)
    note("eval.batches is now eval.tokens: " + std::to_string(batches) + " batches of " +
         std::to_string(sequences) + " sequences of " + std::to_string(length) +
         " tokens are eval.tokens = " + std::to_string(config.eval.tokens));
}

namespace {
Config with_settings(Config config, const std::vector<std::string>& settings, const ConfigNotes& note) {
  for (const std::string& setting : settings) apply_setting(config, setting);
  resolve_retired(config, config.train.batch, note);
  validate(config);
  return config;
}
}  // namespace

Config load_config(const std::string& name_or_file, const std::vector<std::string>& settings,
                   const ConfigNotes& note) {
  Config config;
  if (names_a_file(name_or_file))
    apply_toml(config, text_of_file(name_or_file), name_or_file, note);
  else
    apply_toml(config, preset_of(name_or_file).toml, "preset " + name_or_file);
  return with_settings(config, settings, note);
}

Config read_config(const std::string& text, const std::string& origin,
                   const std::vector<std::string>& settings, const ConfigNotes& note) {
  Config config;
  apply_toml(config, text, origin, note);
  return with_settings(config, settings, note);
}

std::string to_toml(const Config& config) {
  Config copy = config;
  std::string toml, section;
  for (const Key& key : config_keys(copy)) {
    if (key.section() != section) {
      toml += (section.empty() ? "[" : "\n[") + key.section() + "]\n";
      section = key.section();
    }
    toml += key.leaf() + " = " + value_as_toml(key) + "  # " + key.comment;
    if (const TextKey* slot = std::get_if<TextKey>(&key.slot); slot && !slot->choices.empty())
      toml += "; " + expected_value(key);
    toml += '\n';
  }
  return toml;
}

}  // namespace goat
