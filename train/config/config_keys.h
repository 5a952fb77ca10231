// The one table of configuration keys. Parsing, --set, range checks, suggestions and to_toml all read it. A
// new key needs one row, and a new choice one word.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "train/config/config.h"

namespace goat {

// The location and the allowed values of a key. `value` points into the Config for which the table was made.
struct IntegerKey {
  std::int64_t* value;
  std::int64_t low, high;  // both are allowed
};
struct NumberKey {
  double* value;
  double low, high;             // both are allowed
  bool above_low_only = false;  // low itself is not allowed
};
struct FlagKey {
  bool* value;
};
struct TextKey {
  std::string* value;
  std::vector<std::string> choices;  // empty: any text without control characters
  bool sums = false;                 // also sums "a+b" of choices; which go together, validate() says
};

// The terms of a sum: "goat+rope" -> {"goat", "rope"}. A text without a plus is one term.
std::vector<std::string> terms_of(const std::string& sum);

// What happens if a run is resumed with another value of a key (docs/resume.md).
struct OnResume {
  enum Kind {
    silent,    // the run continues bitwise as before; only how often it reports or saves may change
    reported,  // the run continues with the new value and reports it
    begun,     // only the start of a run reads the key; reports that the change has no effect
    refused    // the run cannot continue; `reason` says why
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

bool value_allowed(const Key& key);          // whether the present value is allowed
std::string expected_value(const Key& key);  // "an integer from 1 to 10000", "one of \"goat\", \"none\"", ...
std::string value_as_toml(const Key& key);   // the present value
std::string toml_string(const std::string& text);  // a TOML basic string
bool is_control(char c);                           // whether c is an ASCII control character

// The candidate nearest to `typed` in edit distance, or an empty string if none is near.
std::string nearest(const std::string& typed, const std::vector<std::string>& candidates);

// "did you mean model.heads?" for a name that is no key. If no key is near, lists the keys of its section,
// or all sections.
std::string key_suggestion(const std::string& typed, const std::vector<Key>& keys);

}  // namespace goat
