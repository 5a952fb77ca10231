#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "test/catch.h"
#include "test/operand.h"
#include "test/temporary_folder.h"
#include "train/config/config.h"
#include "train/config/config_keys.h"

namespace goat {
namespace {

// The message of the ConfigError that `action` throws; empty if it throws none.
template <class Action>
std::string refusal(Action action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::string refusal_of_toml(const std::string& text) {
  Config config;
  return refusal([&] { apply_toml(config, text, "run.toml"); });
}

std::string refusal_of_setting(const std::string& setting) {
  Config config;
  return refusal([&] { apply_setting(config, setting); });
}

std::string refusal_of(const std::string& name, const std::vector<std::string>& settings) {
  return refusal([&] { load_config(name, settings); });
}

void check_mentions(const std::string& message, const std::vector<std::string>& parts) {
  INFO("message: " << message);
  for (const std::string& part : parts) CHECK_THAT(message, ContainsSubstring(part));
}

// The bytes of `config` that a key stores its value in.
std::pair<const char*, std::size_t> bytes_of(const Key& key) {
  return std::visit(
      [](const auto& slot) {
        return std::pair{reinterpret_cast<const char*>(slot.value), sizeof *slot.value};
      },
      key.slot);
}

// A value the key takes that differs from the present one, as TOML.
std::string another_value(const IntegerKey& slot) {
  return std::to_string(*slot.value == slot.high ? slot.low : slot.high);
}
std::string another_value(const NumberKey& slot) {
  return std::to_string(slot.low + (slot.high - slot.low) * 0.625);
}
std::string another_value(const FlagKey& slot) { return *slot.value ? "false" : "true"; }
std::string another_value(const TextKey& slot) {
  if (slot.choices.empty()) return "\"some/*.bin\"";
  return toml_string(*slot.value == slot.choices.back() ? slot.choices.front() : slot.choices.back());
}

}  // namespace

TEST_CASE("config keys: every member of Config belongs to exactly one key") {
  Config config;
  std::vector<std::pair<const char*, std::size_t>> fields;
  for (const Key& key : config_keys(config)) fields.push_back(bytes_of(key));
  for (const Key& key : retired_keys(config)) fields.push_back(bytes_of(key));
  std::sort(fields.begin(), fields.end());
  const char* end = reinterpret_cast<const char*>(&config);
  for (const auto& [start, size] : fields) {
    const std::ptrdiff_t gap = start - end;
    CHECK(gap >= 0);
    CHECK(gap < 8);  // padding
    end = start + size;
  }
  CHECK(reinterpret_cast<const char*>(&config + 1) - end < 8);
}

TEST_CASE("config keys: every key is reached by --set and by TOML, and shows in to_toml") {
  const Config defaults;
  Config copy = defaults;
  for (const Key& key : config_keys(copy)) {
    INFO(key.name);
    CHECK(value_allowed(key));
    const std::string value = std::visit([](const auto& slot) { return another_value(slot); }, key.slot);
    const std::string line = key.leaf() + " = " + value;
    Config by_setting, by_toml;
    const bool differs = value != value_as_toml(key);  // not where there is only one choice
    apply_setting(by_setting, key.name + "=" + value);
    apply_toml(by_toml, "[" + key.section() + "]\n" + line + "\n", "test");
    CHECK((to_toml(by_setting) != to_toml(defaults)) == differs);
    CHECK(to_toml(by_setting) == to_toml(by_toml));
    Config reread;
    apply_toml(reread, to_toml(by_setting), "test");
    CHECK(to_toml(reread) == to_toml(by_setting));
    check_mentions(refusal_of_setting(key.name + "="),
                   std::holds_alternative<TextKey>(key.slot) && std::get<TextKey>(key.slot).choices.empty()
                       ? std::vector<std::string>{}
                       : std::vector<std::string>{key.name, expected_value(key)});
  }
}

TEST_CASE("config: to_toml loads as the same configuration") {
  const goat::test::TemporaryFolder folder;
  for (const Preset& preset : presets()) {
    INFO(preset.name);
    CHECK(!preset.description.empty());
    CHECK(preset.description.find('\n') == std::string::npos);
    const Config config =
        load_config(preset.name, {"train.lr=0.1", "train.min_lr=1e-05", "train.eps=3.0000000000000004e-9",
                                  "train.tokens=1_000_001", "train.warmup=0",
                                  "data.val=it's a \"glob\"\\*.bin", "train.seed=9223372036854775807"});
    const Config reread = load_config(folder.file("config.toml", to_toml(config)), {});
    CHECK(to_toml(reread) == to_toml(config));
    CHECK(reread.train.eps == 3.0000000000000004e-9);
    CHECK(reread.train.tokens == 1'000'001);
    CHECK(reread.train.steps == 0);
    CHECK(reread.train.seed == 9223372036854775807);
    CHECK(reread.data.val == "it's a \"glob\"\\*.bin");
  }
}

TEST_CASE("config: presets hold their published settings") {
  const Config task = load_config("copy_mixture", {});
  CHECK(task.data.source == "copy_mixture");
  CHECK(task.head_dim() == 32);
  CHECK(task.lane_dim() == 18);
  CHECK(task.content_dim() == 14);
  CHECK(task.steps() == 800);
  CHECK(task.prior.recency == "off");
  const Config text = load_config("shakespeare", {});
  CHECK(text.model.vocab == 256);
  CHECK(text.data.block == "window");
  CHECK(text.prior.recency == "free");
  CHECK(text.eval.tokens == 65536);
}

TEST_CASE("config: the retrieval presets hold the published model and schedule") {
  for (const char* name : {"passkey", "niah"}) {
    INFO(name);
    const Config task = load_config(name, {});
    CHECK(task.data.source == name);
    CHECK(task.model.vocab == 70);
    CHECK(task.model.layers == 12);
    CHECK(task.head_dim() == 64);
    CHECK(task.ff_width() == 4 * 512);
    CHECK(task.prior.pos_rank == 8);
    CHECK(task.prior.abs_rank == 8);
    CHECK(task.prior.sink_init_scale == 3e-3);
    CHECK(task.steps() == 2000);
    CHECK(task.train.warmup == 400);
    CHECK(task.train.min_lr == 0);
    CHECK(task.train.beta2 == 0.999);
    CHECK(task.train.weight_decay == 0.01);
  }
  CHECK(load_config("passkey", {}).train.loss == "mixed");
  CHECK(load_config("passkey", {}).data.seq_len == 1024);
  CHECK(load_config("niah", {}).train.loss == "span");
  CHECK(load_config("niah", {}).data.seq_len == 256);
}

TEST_CASE("config: unknown keys and sections are refused with the nearest known one") {
  check_mentions(refusal_of_toml("[model]\nlayers = 2\nhead = 4\n"),
                 {"run.toml:3", "unknown key model.head", "4", "did you mean model.heads?"});
  check_mentions(refusal_of_toml("layers = 2\n"),
                 {"run.toml:1", "unknown key layers", "did you mean model.layers?"});
  check_mentions(refusal_of_toml("\n[modle]\nheads = 4\n"),
                 {"run.toml:2", "unknown section [modle]", "did you mean [model]?"});
  check_mentions(refusal_of_toml("[model]\nzzzzzzzz = 1\n"),
                 {"model.zzzzzzzz", "the keys of section model are block, layers, heads"});
  check_mentions(refusal_of_toml("[zzzzzzzzz]\n"),
                 {"unknown section",
                  "the sections are model, prior, data, data.copy_mixture, data.passkey, data.niah, train, "
                  "eval, checkpoint, distributed, log"});
  check_mentions(refusal_of_toml("model = 4\n"), {"model = 4", "is a section", "[model]"});
  check_mentions(refusal_of_toml("[[model]]\nheads = 4\n"), {"model", "is a section"});
  check_mentions(refusal_of_toml("\"model.heads\" = 4\n"), {"\"model.heads\"", "quotes"});
  check_mentions(refusal_of_setting("model.haeds=4"), {"--set model.haeds=4", "did you mean model.heads?"});
  check_mentions(refusal_of_setting("model.lr=1"), {"did you mean train.lr?"});
  check_mentions(refusal_of_setting("seq_len=1"), {"did you mean data.seq_len?"});
  check_mentions(refusal_of_setting("copy_mixture.p_frist=1"), {"did you mean data.copy_mixture.p_first?"});
  check_mentions(refusal_of_setting("train.interval=1"), {"did you mean", ".interval?"});
  check_mentions(refusal_of_setting(std::string(100'000, 'x') + "=1"), {"unknown key", "the sections are"});
  CHECK(refusal_of_setting(std::string(100'000, 'x') + "=1").size() < 1000);
}

TEST_CASE("config: characters outside ASCII stand in comments and in quoted values, and nowhere else") {
  const auto train_of = [](const std::string& text) {
    Config config;
    apply_toml(config, text, "run.toml");
    return config.data.train;
  };
  CHECK(train_of("# K\u00e4se\n[data] # \u044d\ntrain = \"d\u00e9j\u00e0/*.bin\" # \u00fc\n") ==
        "d\u00e9j\u00e0/*.bin");
  CHECK(train_of("[data]\ntrain = '\u65e5\u672c#\u8a9e'\n") == "\u65e5\u672c#\u8a9e");
  CHECK(train_of("[data]\ntrain = \"a\\\"\u00e4\"\n") == "a\"\u00e4");
  for (const char* bad : {"a=2ri'++=2ri'+\u044d''A.-", "train = \"a\"\u044d", "train = 'a", "\"\u044d\" = 1",
                          "[\"\u044d\"]", "train = ['\u044d']"}) {
    INFO(bad);
    CHECK(!refusal_of_toml("[data]\n" + std::string(bad) + "\n").empty());
  }
  check_mentions(refusal_of_toml("[data]\ntrain = \"\"\"\n\u044d\n\"\"\"\n"), {"run.toml:2", "one line"});
}

TEST_CASE("config: values of the wrong type are refused") {
  check_mentions(refusal_of_toml("[model]\nheads = \"4\"\n"),
                 {"run.toml:2", "model.heads = \"4\" is a string", "an integer from 1 to"});
  check_mentions(refusal_of_toml("[model]\nheads = 4.0\n"),
                 {"model.heads = 4.0 is a float", "an integer from 1 to"});
  check_mentions(refusal_of_toml("[model]\nheads = true\n"), {"model.heads = true is a boolean"});
  check_mentions(refusal_of_toml("[model]\nheads = [4]\n"), {"model.heads", "is an array"});
  check_mentions(refusal_of_toml("[model]\nheads = {}\n"), {"model.heads", "is a table"});
  check_mentions(refusal_of_toml("[model]\nheads = 1979-05-27\n"), {"model.heads = 1979-05-27 is a date"});
  check_mentions(refusal_of_toml("[model]\nblock = 1\n"),
                 {"model.block = 1 is an integer", "expected one of \"gpt\", \"llama\""});
  check_mentions(refusal_of_toml("[train]\nlr = \"fast\"\n"),
                 {"train.lr = \"fast\"", "a number greater than 0 and at most 10"});
  check_mentions(refusal_of_toml("[train]\ndeterministic = 1\n"),
                 {"train.deterministic = 1", "true or false"});
  check_mentions(refusal_of_setting("train.deterministic=yes"),
                 {"train.deterministic = yes", "true or false"});
  check_mentions(refusal_of_setting("train.steps=4e9"),
                 {"--set train.steps=4e9", "is a float", "an integer"});
  Config config;
  apply_toml(config, "[model]\nbias = false\n", "test");  // a word, which needs no quotes
  CHECK(config.model.bias == "false");
  apply_toml(config, "[model]\nbias = \"auto\"\n", "test");
  CHECK(config.model.bias == "auto");
  check_mentions(refusal_of_toml("[model]\nblock = true\n"), {"model.block = true is a boolean"});
  apply_toml(config, "[train]\nlr = 1\n", "test");  // an integer is a number
  CHECK(config.train.lr == 1);
}

TEST_CASE("config: malformed numbers are refused") {
  for (const char* number : {"12abc", "1e", "12 abc", "1 2", "--1", "0x", "1__0", "1_", "abc", "5 # five",
                             "5\n[model]", "1,5", "", " "}) {
    INFO("number: " << number);
    check_mentions(refusal_of_setting(std::string("train.steps=") + number),
                   {"--set train.steps=", "train.steps = ", "expected an integer from 0 to"});
  }
  for (const char* number :
       {"1e", "1.5x", "1.e", "nan", "inf", "-inf", "1e400", "0", "-1", "11", "1e-400", ""}) {
    INFO("number: " << number);
    check_mentions(refusal_of_setting(std::string("train.lr=") + number),
                   {"train.lr", "a number greater than 0 and at most 10"});
  }
  for (const char* line : {"steps = 12abc", "steps = 1e", "steps = 99999999999999999999", "steps ="}) {
    INFO("line: " << line);
    check_mentions(refusal_of_toml(std::string("[train]\nseed = 3\n") + line + "\n"),
                   {"run.toml:3", line, "train.steps takes an integer from 0 to"});
  }
  check_mentions(refusal_of_setting("train.seed=9223372036854775808"),
                 {"train.seed = 9223372036854775808", "fits in 64 bits"});
  check_mentions(refusal_of_toml("[train]\nlr = nan\n"), {"run.toml:2", "train.lr = nan", "a number"});
  check_mentions(refusal_of_toml("[train]\nbeta1 = inf\n"), {"train.beta1 = inf", "from 0 to 0.999999"});
}

TEST_CASE("config: values out of range are refused with what is allowed") {
  check_mentions(refusal_of_setting("train.batch=0"), {"train.batch = 0", "an integer from 1 to"});
  check_mentions(refusal_of_setting("train.batch=-1"), {"train.batch = -1", "an integer from 1 to"});
  check_mentions(refusal_of_setting("log.interval=0"), {"log.interval = 0", "from 1"});
  check_mentions(refusal_of_setting("train.beta2=1"), {"train.beta2 = 1", "from 0 to 0.999999"});
  check_mentions(refusal_of_setting("data.bos=-1"), {"data.bos = -1", "from 0"});
  check_mentions(refusal_of_setting("prior.pos_rank=0"), {"prior.pos_rank = 0", "from 1"});
  check_mentions(refusal_of_setting("model.vocab=1"), {"model.vocab = 1", "from 2"});
  check_mentions(refusal_of_setting("model.attention=goatt"),
                 {"model.attention = \"goatt\"", "one of \"goat\", \"rope\", \"rope_pi\"",
                  "a sum such as \"goat+rope\""});
  for (const char* sum : {"goat+", "+", "goat+rop", "goat rope", ""})
    CHECK_FALSE(refusal_of_setting(std::string("model.attention=") + sum).empty());
  check_mentions(refusal_of_toml("[data]\ntrain = \"a\\u0000b\"\n"),
                 {"data.train", "without control characters"});
}

TEST_CASE("config: --set takes plain and quoted strings, underscores and spaces") {
  Config config;
  apply_setting(config, "data.train=a=b *.bin");
  CHECK(config.data.train == "a=b *.bin");
  apply_setting(config, "data.train=\"x # y\"");
  CHECK(config.data.train == "x # y");
  apply_setting(config, "data.train='it''s'");
  CHECK(config.data.train == "it''s");
  apply_setting(config, "data.train=");
  CHECK(config.data.train.empty());
  apply_setting(config, " train.tokens = 4_000_000_000 ");
  CHECK(config.train.tokens == 4'000'000'000);
  apply_setting(config, "train.lr=+3e-4");
  CHECK(config.train.lr == 3e-4);
  apply_setting(config, "model.attention='none'");
  CHECK(config.model.attention == "none");
  check_mentions(refusal_of_setting("data.train=\"a"), {"data.train = \"a", "both of its quotes or none"});
  check_mentions(refusal_of_setting("data.train=a\xff"), {"data.train", "UTF-8"});
  check_mentions(refusal_of_setting("train.steps"), {"--set train.steps", "no '='", "section.key=value"});
  check_mentions(refusal_of_setting("=5"), {"no key before the '='"});
  check_mentions(refusal_of_setting("model=5"), {"model is a section"});
  check_mentions(refusal_of_setting(""), {"no '='"});
}

TEST_CASE("config: broken TOML and duplicate keys are refused with the line") {
  check_mentions(refusal_of_toml("[model]\nheads = 4\nheads = 8\n"), {"run.toml:3", "heads = 8", "redefine"});
  check_mentions(refusal_of_toml("[model]\nheads = 4\n[model]\nlayers = 1\n"), {"run.toml:3", "redefine"});
  check_mentions(refusal_of_toml("[model]\nheads = 4\n[model\n"), {"run.toml:3", "not valid TOML"});
  check_mentions(refusal_of_toml("model.heads 4\n"), {"run.toml:1", "not valid TOML", "model.heads 4"});
  check_mentions(refusal_of_toml("[data]\ntrain = \"a\n"), {"run.toml:2", "not valid TOML"});
  check_mentions(refusal_of_toml("[data]\r\n[\r\rmodel]\r\n"),
                 {"run.toml:2", "carriage return within a line"});
  check_mentions(refusal_of_toml("[data]\ntrain = \"\xc3\xa9\xff\xfe\"\n"),
                 {"run.toml:2", "not valid TOML", "train = \"\xc3\xa9??\""});
  check_mentions(refusal_of_toml(std::string("[data]\n[\0\0", 9)), {"run.toml:2", "code 0", "text file"});
  check_mentions(refusal_of_toml("[data]\nbl\u00f6ck = 1\n"),
                 {"run.toml:2", "outside ASCII", "bl\u00f6ck = 1"});
  CHECK(refusal_of_toml("[data] # \u00e9\ntrain = 'd\u00e9' # \u00e9\nval = \"\\\"\u00e9#\"\n").empty());
  for (const char* header : {"[", "[=1]", "[]", "[[", "[[%]]", "[ #]", "[.a]"})
    check_mentions(refusal_of_toml(std::string("[data]\n ") + header + "\n"),
                   {"run.toml:2", "name of a section after '['", header});
  CHECK(refusal_of_toml("[data]\ntrain = " + std::string(100'000, '[')).size() < 1000);
}

TEST_CASE("config: a refused file or setting changes nothing") {
  Config config;
  const std::string before = to_toml(config);
  CHECK_THROWS_AS(
      apply_toml(config, "[eval]\nbatches = 3\n[model]\nlayers = 3\n[train]\nbatch = 0\n", "test"),
      ConfigError);
  CHECK_THROWS_AS(apply_setting(config, "train.batch=0"), ConfigError);
  CHECK(to_toml(config) == before);
}

TEST_CASE("config: the later of train.steps and train.tokens sets the length, both in one file is refused") {
  CHECK(load_config("copy_mixture", {"train.tokens=204801"}).steps() ==
        101);  // 100 steps of 32 * 64 tokens and one token more
  const Config again = load_config("copy_mixture", {"train.tokens=204800", "train.steps=60"});
  CHECK(again.train.tokens == 0);
  CHECK(again.steps() == 60);
  check_mentions(refusal_of_toml("[train]\nsteps = 5\ntokens = 6\n"),
                 {"run.toml:3", "train.steps = 5", "train.tokens = 6", "keep one"});
  CHECK(refusal_of_toml("[train]\nsteps = 0\ntokens = 6\n").empty());
  check_mentions(refusal_of("copy_mixture", {"train.steps=0"}),
                 {"train.steps = 0", "train.tokens = 0", "set one"});
}

TEST_CASE("config: missing, unreadable, empty and foreign files are explained") {
  const goat::test::TemporaryFolder folder;
  check_mentions(refusal_of("copy_mixtrue", {}),
                 {"copy_mixtrue", "did you mean copy_mixture?", "--list-configs"});
  check_mentions(refusal_of("", {}), {"--list-configs"});
  check_mentions(refusal_of(folder.path().string() + "/missing.toml", {}), {"missing.toml", "no such file"});
  check_mentions(refusal_of("missing.toml", {}), {"missing.toml", "no such file"});
  check_mentions(refusal_of(folder.path().string(), {}), {folder.path().string(), "directory"});
  check_mentions(refusal_of(folder.file("empty.toml", " \n"), {}), {"empty.toml", "is empty"});
  check_mentions(refusal_of(folder.file("weights.toml", std::string(2 << 20, '#')), {}),
                 {"weights.toml", "larger than 1 MiB"});
  check_mentions(refusal_of(folder.file("binary.toml", std::string("\x7f\x45LF\0\1", 6)), {}),
                 {"binary.toml:1", "not valid TOML", "code 127"});
  check_mentions(refusal_of("/dev/zero", {}), {"/dev/zero", "larger than 1 MiB"});
  const std::string locked = folder.file("locked.toml", "[train]\nsteps = 1\n");
  std::filesystem::permissions(locked, std::filesystem::perms::none);
  if (geteuid() != 0) check_mentions(refusal_of(locked, {}), {"locked.toml", "permissions"});
  const std::string plain = folder.file(
      "bom_and_crlf", "\xEF\xBB\xBF[train]\r\nsteps = 7\r\nwarmup = 1\r\n[data]\r\ntrain = 'x'\r\n");
  CHECK(load_config(plain, {}).steps() == 7);
}

TEST_CASE("config: a sum of positional parts has one order, and parts that do not go together are refused") {
  const auto refused = [](const std::string& sum, const std::vector<std::string>& settings = {}) {
    std::vector<std::string> all = {"model.attention=" + sum};
    all.insert(all.end(), settings.begin(), settings.end());
    return refusal_of("copy_mixture", all);
  };
  const Config config = load_config("copy_mixture", {"model.attention=learned+rope+goat"});
  CHECK(config.model.attention == "goat+rope+learned");
  for (const char* part : {"goat", "rope", "learned"}) CHECK(config.has_part(part));
  for (const char* part : {"rope_pi", "none", "alibi", "go", ""}) CHECK_FALSE(config.has_part(part));
  CHECK(config.lane_dim() == 18);
  CHECK(load_config("copy_mixture", {"model.attention=goat+rope+learned"}).model.attention ==
        config.model.attention);
  Config from_file;
  apply_toml(from_file, "[model]\nattention = \"rope+goat\"\n", "run.toml");
  CHECK(from_file.model.attention == "goat+rope");

  check_mentions(refused("rope+rope"), {"model.attention = \"rope+rope\"", "rope twice"});
  check_mentions(refused("none+rope"), {"none means no part", "leave it out"});
  check_mentions(refused("rope+rope_pi"), {"both turn", "leave out one"});
  check_mentions(refused("alibi+alibi_learned"), {"both give each head a slope", "leave out one"});
  CHECK(refused("goat+alibi").empty());  // in this preset goat has no slope
  check_mentions(refused("alibi+goat", {"prior.recency=free"}),
                 {"goat and alibi both give each head a slope", "prior.recency to off", "leave out one"});
  check_mentions(refused("goat+alibi_learned", {"prior.recency=softplus"}), {"goat and alibi_learned"});
  CHECK(refused("sinusoidal+rope+alibi").empty());
  CHECK(load_config("copy_mixture", {"model.attention=forget+goat"}).model.attention == "goat+forget");
  for (const char* sum : {"forget", "rope+forget", "alibi+forget", "learned+forget", "goat+rope+forget"})
    CHECK(refused(sum, {"prior.recency=free"}).empty());
}

TEST_CASE("config: learned positions take sequences of up to the training length, others take any") {
  const Config learned = load_config("copy_mixture", {"model.attention=rope+learned"}),
               rope = load_config("copy_mixture", {"model.attention=rope"});
  CHECK_NOTHROW(require_length(learned, 64, "--length 64"));
  CHECK_NOTHROW(require_length(rope, 65, "--length 65"));
  try {
    require_length(learned, 65, "--length 65");
    FAIL("a sequence without vectors was taken");
  } catch (const ConfigError& error) {
    check_mentions(error.what(), {"--length 65", "rope+learned", "data.seq_len", "up to 64 tokens, not 65"});
  }
}

TEST_CASE("config: impossible combinations are refused with the keys, their values and a way out") {
  const auto refused = [](const std::vector<std::string>& settings) {
    return refusal_of("copy_mixture", settings);
  };
  check_mentions(refused({"model.heads=3"}), {"model.width = 64", "model.heads = 3", "63 or 66"});
  check_mentions(refused({"model.heads=100"}), {"model.width = 64", "such as 100"});
  check_mentions(refused({"model.kv_heads=3"}),
                 {"model.heads = 2", "model.kv_heads = 3", "a divisor of it such as 2", "0 for as many"});
  check_mentions(refused({"model.width=96", "model.heads=6", "prior.pos_rank=3", "model.kv_heads=4"}),
                 {"model.heads = 6", "model.kv_heads = 4", "such as 3"});
  CHECK(refused({"model.kv_heads=1"}).empty());
  check_mentions(refused({"prior.pos_rank=15"}),
                 {"model.width = 64", "model.heads = 2", "prior.pos_rank = 15", "at least 66", "at most 14"});
  CHECK(refused({"prior.pos_rank=14"}).empty());
  CHECK(refused({"prior.pos_rank=15", "model.width=66"}).empty());
  check_mentions(refused({"prior.lane_dim=32"}),
                 {"prior.lane_dim = 32", "at least 66", "prior.lane_dim = 0"});
  check_mentions(refused({"prior.lane_dim=17"}),
                 {"prior.lane_dim = 17", "prior.pos_rank = 8", "at least 18"});
  CHECK(refused({"prior.lane_dim=17", "model.attention=none"}).empty());
  check_mentions(refused({"model.attention=rope", "model.width=66"}),
                 {"rope", "model.width = 66", "model.heads = 2"});
  CHECK(refused({"model.attention=none", "model.width=66"}).empty());
  CHECK(refused({"model.attention=rope", "model.width=66", "model.rope_fraction=0.9"}).empty());
  check_mentions(refused({"model.attention=goat+rope", "prior.lane_dim=19"}),
                 {"13 content dimensions", "model.attention = \"goat+rope\"", "prior.lane_dim", "20"});
  check_mentions(refused({"model.attention=rope", "model.rope_fraction=0.02"}),
                 {"model.rope_fraction = 0.02", "32 dimensions", "not one pair"});
  check_mentions(refused({"prior.init=alibi"}), {"prior.init", "prior.recency"});
  check_mentions(refused({"model.recompute=gelu", "model.epilogue=library"}),
                 {"model.recompute = \"gelu\"", "model.epilogue = \"library\"", "to own", "none or block"});
  CHECK(refused({"model.recompute=block", "model.epilogue=library"}).empty());
  CHECK(refused({"model.recompute=gelu", "model.epilogue=library", "model.block=llama"}).empty());
  check_mentions(refused({"train.micro_batch=10"}),
                 {"train.batch = 32", "train.micro_batch = 10", "such as 8"});
  check_mentions(refused({"train.micro_batch=64"}),
                 {"train.batch = 32", "train.micro_batch = 64", "such as 32"});
  check_mentions(refused({"train.warmup=801"}), {"train.warmup = 801", "800 steps", "train.steps"});
  check_mentions(refused({"train.tokens=2049", "train.warmup=3"}),
                 {"train.warmup = 3", "2 steps", "train.tokens"});
  check_mentions(refused({"train.min_lr=0.02"}), {"train.min_lr = 0.02", "train.lr = 0.01"});
  check_mentions(refused({"data.copy_mixture.p_first=0.8"}), {"p_first = 0.8", "p_prev = 0.25"});
  check_mentions(refused({"data.source=passkey"}), {"model.vocab = 64", "passkey", "set it to 70"});
  check_mentions(refused({"data.source=passkey", "model.vocab=70"}),
                 {"data.seq_len = 64", "too short", "passkey", "digits = 8", "at least 67"});
  CHECK(refused({"data.source=passkey", "model.vocab=70", "data.seq_len=67"}).empty());
  check_mentions(refused({"data.source=niah", "model.vocab=70", "data.niah.letters=50"}),
                 {"data.seq_len = 64", "too short", "niah", "letters = 50", "at least 142"});
  check_mentions(
      refused({"data.source=niah", "model.vocab=70", "data.seq_len=200", "data.niah.min_depth=0.95"}),
      {"min_depth = 0.95", "max_depth = 0.9"});
  CHECK(refused({"data.copy_mixture.p_first=0.7", "data.copy_mixture.p_prev=0.3"}).empty());
  check_mentions(refused({"data.seq_len=1"}), {"data.seq_len = 1", "at least 2"});
  check_mentions(refused({"data.source=shards"}), {"data.train is empty", "glob"});
  check_mentions(refused({"data.source=shards", "data.train=x"}),
                 {"data.bos = 50256", "model.vocab = 64", "window"});
  CHECK(refused({"data.source=shards", "data.train=x", "data.bos=63"}).empty());
  const std::vector<std::string> shards = {"data.source=shards", "data.block=window"};
  const auto with = [&](std::initializer_list<std::string> settings) {
    std::vector<std::string> all = shards;
    all.insert(all.end(), settings);
    return refused(all);
  };
  CHECK(with({"data.mixture=0.7 a, 0.3 b"}).empty());
  check_mentions(with({"data.mixture=0.7 a, b"}), {"data.mixture", "\"b\""});
  check_mentions(with({"data.mixture=0.7 a", "data.train=x"}),
                 {"data.train = \"x\"", "data.mixture = \"0.7 a\""});
  CHECK(with({"data.train=x", "data.block=crop", "data.seq_len=16", "data.record_tokens=17"}).empty());
  check_mentions(with({"data.train=x", "data.block=crop", "data.seq_len=16", "data.record_tokens=16"}),
                 {"data.seq_len = 16", "data.record_tokens = 16", "lower data.seq_len"});
  CHECK(refused({"data.source=shards", "data.train=x", "data.block=window"}).empty());
  check_mentions(refused({"model.width=1000000", "model.layers=10000"}),
                 {"model.width = 1000000", "parameters", "any machine"});
  check_mentions(refused({"train.batch=10000000", "train.micro_batch=10000000", "data.seq_len=16000000"}),
                 {"train.micro_batch = 10000000", "activations"});
  check_mentions(refused({"train.batch=10000000", "train.micro_batch=1", "data.seq_len=16000000",
                          "train.steps=1000000000"}),
                 {"steps", "64 bits"});
  // In 64 bits the product wraps around to 0, which eval.tokens takes.
  check_mentions(refused({"eval.batches=536870912", "train.batch=32768", "data.seq_len=1048576"}),
                 {"eval.batches = 536870912", "64 bits", "set eval.tokens"});
}

TEST_CASE("config: validate checks the ranges of a Config filled in by hand") {
  Config config = load_config("copy_mixture", {});
  config.model.heads = 0;
  check_mentions(refusal([&] { validate(config); }), {"model.heads = 0", "from 1"});
  config.model.heads = 2;
  config.train.tokens = 5;
  check_mentions(refusal([&] { validate(config); }),
                 {"train.steps = 800", "train.tokens = 5", "set one of them to 0"});
}

TEST_CASE("config: derived values follow their formulas") {
  Config config;
  config.model.heads = 12;
  CHECK(config.sink_hidden() == 24);  // min(2 * 18, 2 * 12)
  config.model.heads = 1;
  CHECK(config.sink_hidden() == 4);
  config.model.heads = 32;
  CHECK(config.sink_hidden() == 36);
  config.prior.sink_hidden = 5;
  CHECK(config.sink_hidden() == 5);
  config.train.tokens = 4'000'000'000;
  CHECK(config.steps() == 15259);  // the published C4 run
}

TEST_CASE("config reader: any mutation of a valid file is read or refused with ConfigError") {
  const std::uint64_t seed = test::fresh_seed();
  INFO("seed " << seed);
  test::Rng random(seed);
  const std::string valid = to_toml(load_config("shakespeare", {}));
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const std::string marks = "=[]{}\"'.#\n\\,_-+e0\xff";
  int refusals = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string text = valid;
    for (std::size_t edits = 1 + below(3); edits > 0; --edits) {
      const std::size_t at = below(text.size()), length = below(40);
      switch (below(4)) {
        case 0: text.erase(at, length); break;
        case 1: text.insert(at, text.substr(below(text.size()), length)); break;
        case 2: text.insert(at, 1, marks[below(marks.size())]); break;
        default: text[at] = static_cast<char>(below(256));
      }
    }
    const std::string message = refusal_of_toml(text);  // any other exception fails the test
    refusals += !message.empty();
    CHECK(message.size() < 1000);
  }
  CHECK(refusals > 300);
}

}  // namespace goat
