// Any text is read as a manifest or refused with DataError; what is read comes back the same. Most inputs
// would fail at the checksum, so each is also tried with the checksum it should have.
#include <nlohmann/json.hpp>
#include <string>

#include "data/checksum.h"
#include "data/data_error.h"
#include "train/run/manifest.h"

namespace {
void try_manifest(const std::string& text) {
  try {
    const goat::Manifest manifest = goat::parse_manifest(text, "state.json");
    const std::string again = goat::manifest_text(manifest);
    if (goat::manifest_text(goat::parse_manifest(again, "again")) != again) __builtin_trap();
  } catch (const goat::DataError&) {
  }
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try_manifest(text);
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return 0;
  json.erase("xxh3_64");
  constexpr auto replace = nlohmann::json::error_handler_t::replace;
  json["xxh3_64"] = goat::checksum_of(json.dump(-1, ' ', false, replace));
  try_manifest(json.dump(-1, ' ', false, replace));
  return 0;
}
