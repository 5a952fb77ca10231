// TOML and --set text of any kind is read or refused with ConfigError; a config that validates survives a
// round trip through its own TOML.
#include <string>

#include "train/config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  goat::Config config;
  try {
    goat::apply_toml(config, text, "fuzz.toml");
    goat::validate(config);
    goat::Config again;
    goat::apply_toml(again, goat::to_toml(config), "again.toml");
    if (goat::to_toml(again) != goat::to_toml(config)) __builtin_trap();
  } catch (const goat::ConfigError&) {
  }
  try {
    goat::apply_setting(config, text);
  } catch (const goat::ConfigError&) {
  }
  return 0;
}
