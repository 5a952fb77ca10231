#include "data/shard_meta.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "data/data_error.h"
#include "data/parsed_json.h"
#include "data/utf8.h"

namespace goat {

namespace {
using Json = nlohmann::json;

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path) {}

  // nullopt if the file is another program's.
  std::optional<ShardMeta> read() const {
    std::ifstream file(path_, std::ios::binary);
    if (!file) throw refused("cannot be read");
    const Json json = parsed_json({std::istreambuf_iterator<char>(file), {}});
    if (json.is_discarded()) throw refused("is not JSON (is it cut short?)");
    const bool of_prepare = json.is_object() && json.contains("tokenizer") && json.contains("vocab") &&
                            json.contains("end_of_text") && json.contains("shards");
    if (!of_prepare) return std::nullopt;
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    ShardMeta meta;
    meta.tokenizer = tokenizer(json["tokenizer"]);
    meta.vocab = integer(json["vocab"], "vocab", 1, most);
    meta.end_of_text = optional_integer(json, "end_of_text", 0, meta.vocab - 1);
    meta.record_tokens = optional_integer(json, "record_tokens", 1, most);
    meta.sha256 = sha256_by_file(json, "shards");
    if (meta.tokenizer == "tokenizer.json")
      meta.tokenizer_sha256 = sha256_by_file(json, "tokenizer_files")["tokenizer/tokenizer.json"];
    return meta;
  }

 private:
  DataError refused(const std::string& what) const {
    return DataError(terminal_text("'" + path_.string() + "' " + what +
                                   ": it describes the shards beside it, and is damaged; copy it or prepare "
                                   "the shards again, or remove it to use them without their description"));
  }
  DataError refused(const std::string& key, const Json& value, const std::string& expected) const {
    const std::string found = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    constexpr std::size_t most = 80;
    return refused("has the " + key + " " + found.substr(0, most) + (found.size() > most ? "..." : "") +
                   ", expected " + expected);
  }

  std::int64_t integer(const Json& json, const char* key, std::int64_t least, std::int64_t most) const {
    if (!json.is_number_integer() || json < least || json > most)
      throw refused(key, json, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
    return json.get<std::int64_t>();
  }
  std::optional<std::int64_t> optional_integer(const Json& json, const char* key, std::int64_t least,
                                               std::int64_t most) const {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) return std::nullopt;
    return integer(*found, key, least, most);
  }

  std::string tokenizer(const Json& json) const {
    constexpr std::size_t longest = 100;
    const auto* const name = json.get_ptr<const std::string*>();
    if (!name || name->empty() || name->size() > longest || terminal_text(*name) != *name)
      throw refused("tokenizer", json, "a name");
    return *name;
  }

  std::map<std::string, std::string> sha256_by_file(const Json& json, const char* key) const {
    const Json files = json.value(key, Json::array());
    if (!files.is_array()) throw refused(key, files, "a list");
    std::map<std::string, std::string> all;
    for (const Json& file : files) {
      const auto text = [&](const char* member) {
        const auto found = file.find(member);  // the end if `file` is no object
        return found == file.end() ? nullptr : found->get_ptr<const std::string*>();
      };
      const std::string* const name = text("file");
      const std::string* const sha256 = text("sha256");
      const bool good = name && sha256 && sha256->size() == 64 &&
                        sha256->find_first_not_of("0123456789abcdef") == std::string::npos;
      if (!good) throw refused(std::string("entry of ") + key, file, "a file and its sha256");
      all[*name] = *sha256;
    }
    return all;
  }

  const std::filesystem::path& path_;
};
}  // namespace

std::optional<ShardMeta> read_shard_meta(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "meta.json";
  std::error_code unreadable;
  if (!std::filesystem::is_regular_file(path, unreadable)) return std::nullopt;
  return Reader(path).read();
}

}  // namespace goat
