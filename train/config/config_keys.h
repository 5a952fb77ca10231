// The one table of configuration keys. Parsing, --set, range checks, suggestions and to_toml all read it, so
// a new key is one row and a new choice one word.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "train/config/config.h"

namespace goat {

// What a key stores and which values it takes. `value` points into the Config the table was made for.
struct IntegerKey {
  std::int64_t* value;
  std::int64_t low, high;  // both allowed
};
struct NumberKey {
  double* value;
  double low, high;             // both allowed
  bool above_low_only = false;  // low itself is not allowed
};
struct FlagKey {
  bool* value;
};
struct TextKey {
  std::string* value;
  std::vector<std::string> choices;  // empty: any text without control characters
};

// What happens where a run is resumed with another value of a key (docs/resume.md).
struct OnResume {
  enum Kind {
    silent,    // the run goes on bitwise as before, or only how often it tells and saves changes
    reported,  // the run goes on with the new value, and says so
    begun,     // only the start of a run reads the key: the change is said to have no effect
    refused    // the run cannot go on; `reason` says why
  } kind;
  const char* reason = "";
};

struct Key {
  std::string name;  // "section.key"
  std::variant<IntegerKey, NumberKey, FlagKey, TextKey> slot;
  OnResume on_resume;
  std::string comment;

  std::string section() const { return name.substr(0, name.rfind('.')); }
  std::string leaf() const { return name.substr(name.rfind('.') + 1); }
};

// Every key of Config, in the order of to_toml.
std::vector<Key> config_keys(Config& config);

// Keys of older versions that old configs may still hold. They are read, but never written.
std::vector<Key> retired_keys(Config& config);

// The sections of the table ("model", "data", "data.copy_mixture", ...), each once, in order.
std::vector<std::string> config_sections(const std::vector<Key>& keys);

bool value_allowed(const Key& key);          // is the value stored now one that the key takes?
std::string expected_value(const Key& key);  // "an integer from 1 to 10000", "one of \"goat\", \"none\"", ...
std::string value_as_toml(const Key& key);   // the value stored now
std::string toml_string(const std::string& text);  // a TOML basic string
bool is_control(char c);                           // ASCII control characters

// The candidate that `typed` most likely meant, by edit distance; empty if none is near.
std::string nearest(const std::string& typed, const std::vector<std::string>& candidates);

// "did you mean model.heads?" for a name that is no key; where no key is near, the keys of its section or all
// sections.
std::string key_suggestion(const std::string& typed, const std::vector<Key>& keys);

}  // namespace goat
