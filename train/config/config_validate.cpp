// Refuses combinations of settings that cannot work, before anything is allocated. Also computes values that
// depend on several keys.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "data/needle_task.h"
#include "train/config/config.h"
#include "train/config/config_keys.h"
#include "train/config/mixture.h"

namespace goat {

std::int64_t Config::sink_hidden() const {
  return prior.sink_hidden ? prior.sink_hidden
                           : std::min(2 * sink_features(), std::max<std::int64_t>(2 * model.heads, 4));
}

bool Config::has_part(const std::string& part) const {
  const std::vector<std::string> parts = terms_of(model.attention);
  return std::ranges::find(parts, part) != parts.end();
}

std::vector<std::string> Config::parts_with_slopes() const {
  std::vector<std::string> parts = terms_of(model.attention);
  std::erase_if(parts, [&](const std::string& part) {
    return part == "goat" ? prior.recency == "off" : part != "alibi" && part != "alibi_learned";
  });
  return parts;
}

std::int64_t Config::rope_dim() const {
  const std::int64_t pairs = std::llround(model.rope_fraction * static_cast<double>(content_dim()) / 2);
  return 2 * std::min<std::int64_t>(pairs, content_dim() / 2);
}

std::int64_t Config::steps() const {
  if (train.steps) return train.steps;
  const std::int64_t tokens_a_step = tokens_per_step();
  return train.tokens / tokens_a_step + (train.tokens % tokens_a_step != 0);
}

namespace {

std::string equals(const char* key, std::int64_t value) {
  return std::string(key) + " = " + std::to_string(value);
}

std::string equals(const char* key, double value) {
  char digits[32];
  return std::string(key) + " = " +
         std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void require(bool holds, const std::string& otherwise) {
  if (!holds) throw ConfigError(otherwise);
}

// Repeats the parser's range checks, because a Config may be filled in by code.
void check_ranges(const Config& config) {
  Config copy = config;
  for (const Key& key : config_keys(copy))
    require(value_allowed(key),
            key.name + " = " + value_as_toml(key) + " is not allowed; expected " + expected_value(key));
}

void check_heads(const Config& c) {
  const std::int64_t heads = c.model.heads, below = c.model.width / heads * heads;
  require(c.model.width % heads == 0,
          equals("model.width", c.model.width) + " is not divisible by " + equals("model.heads", heads) +
              "; take a multiple of " + std::to_string(heads) + " such as " +
              (below ? std::to_string(below) + " or " : "") + std::to_string(below + heads));
  require(c.kv_heads() <= heads && heads % c.kv_heads() == 0,
          equals("model.heads", heads) + " is not divisible by " +
              equals("model.kv_heads", c.model.kv_heads) +
              "; set model.kv_heads to a divisor of it such as " +
              std::to_string(largest_divisor(heads, c.kv_heads())) + ", or to 0 for as many");
}

// The prior's lanes take d_p >= 2R + 2 of a head's dimensions and must leave at least one for the content.
void check_prior(const Config& c) {
  if (!c.has_prior()) return;
  const std::int64_t needed = 2 * c.prior.pos_rank + 2;
  require(c.lane_dim() >= needed, equals("prior.lane_dim", c.prior.lane_dim) + " is too small for " +
                                      equals("prior.pos_rank", c.prior.pos_rank) +
                                      ", which takes 2 * pos_rank + 2 lanes; set it to at least " +
                                      std::to_string(needed) + ", or to 0 for just that");
  if (c.content_dim() < 1) {
    const std::int64_t fitting_rank = (c.head_dim() - 3) / 2;
    std::string message = equals("model.width", c.model.width) + " and " +
                          equals("model.heads", c.model.heads) + " give heads of " +
                          std::to_string(c.head_dim()) + " dimensions; the prior takes " +
                          std::to_string(c.lane_dim()) + " of them (" +
                          (c.prior.lane_dim ? equals("prior.lane_dim", c.prior.lane_dim)
                                            : equals("prior.pos_rank", c.prior.pos_rank)) +
                          ") and leaves none for the content. Set model.width to at least " +
                          std::to_string(c.model.heads * (c.lane_dim() + 1));
    if (fitting_rank >= 1)
      message += std::string(", or prior.pos_rank to at most ") + std::to_string(fitting_rank) +
                 (c.prior.lane_dim ? " with prior.lane_dim = 0" : "");
    throw ConfigError(message);
  }
  require(c.prior.init != "alibi" || c.prior.recency != "off",
          "prior.init = \"alibi\" starts from ALiBi's slopes, but prior.recency = \"off\" has no slope; set "
          "prior.recency to free or softplus, or prior.init to zero or random");
}

// A part stands once in a sum, and attention takes one slope and one rotation.
void check_attention(const Config& c) {
  const std::string sum = "model.attention = " + toml_string(c.model.attention);
  const std::vector<std::string> parts = terms_of(c.model.attention);
  for (const std::string& part : parts)
    require(std::ranges::count(parts, part) == 1, sum + " has " + part + " twice; name each part once");
  require(parts.size() == 1 || !c.has_part("none"),
          sum + ": none means no part, so that nothing can be added to it; leave it out of the sum");
  const std::vector<std::string> slopes = c.parts_with_slopes();
  if (slopes.size() > 1)
    throw ConfigError(sum + ": " + slopes[0] + " and " + slopes[1] +
                      " both give each head a slope, and attention takes one; leave out one of them" +
                      (slopes[0] == "goat" ? ", or set prior.recency to off" : ""));
  require(!c.has_part("rope") || !c.has_part("rope_pi"),
          sum + ": rope and rope_pi both turn the same dimensions of q and k; leave out one of them");
}

void check_rope(const Config& c) {
  if (!c.has_part("rope") && !c.has_part("rope_pi")) return;
  const std::int64_t pairs = 2 * c.model.heads, content = c.content_dim();
  const std::string heads = equals("model.width", c.model.width) + " and " +
                            equals("model.heads", c.model.heads) + " give heads of " +
                            std::to_string(content) + (c.has_prior() ? " content dimensions" : " dimensions");
  require(c.model.rope_fraction < 1 || content % 2 == 0,
          heads + "; model.attention = " + toml_string(c.model.attention) +
              " turns pairs and needs an even number. Set model.rope_fraction below 1, or " +
              (c.lane_dim() % 2 != 0
                   ? "prior.lane_dim to another number such as " + std::to_string(c.lane_dim() + 1)
                   : "model.width to a multiple of 2 * model.heads such as " +
                         std::to_string((c.model.width / pairs + 1) * pairs)));
  require(c.rope_dim() >= 2,
          equals("model.rope_fraction", c.model.rope_fraction) + ": " + heads +
              ", of which it leaves rope not one pair to turn; raise it, or leave rope out "
              "of model.attention");
}

void check_shards(const Config& c) {
  require(!training_patterns(c).empty(),
          "data.source = \"shards\" needs files, but data.train is empty; set it to a glob, as in --set "
          "data.train='data/mine/train_*.bin'");
  require(c.data.train.empty() || c.data.mixture.empty(),
          "data.train = \"" + c.data.train + "\" and data.mixture = \"" + c.data.mixture +
              "\" both name the training data; empty one of them, as in --set data.train=");
  require(c.data.block != "crop" || c.data.seq_len < c.data.record_tokens,
          equals("data.seq_len", c.data.seq_len) + " and the token after it do not fit in a record of " +
              equals("data.record_tokens", c.data.record_tokens) +
              ", from which data.block = \"crop\" cuts each sequence; lower data.seq_len");
  require(
      c.data.block != "bos" || c.data.bos < c.model.vocab,
      equals("data.bos", c.data.bos) + " is no token of " + equals("model.vocab", c.model.vocab) +
          "; set it to a token id below the vocabulary size, or data.block to window, which needs no BOS");
}

void check_copy_mixture(const Config& c) {
  const auto& [p_first, p_prev] = c.data.copy_mixture;
  constexpr double rounding = 1e-12;
  require(p_first + p_prev <= 1 + rounding,
          equals("data.copy_mixture.p_first", p_first) + " and " +
              equals("data.copy_mixture.p_prev", p_prev) +
              " are probabilities of two exclusive events, but add up to more than 1; lower one of them");
  require(c.data.seq_len >= 2,
          equals("data.seq_len", c.data.seq_len) +
              " is too short for data.source = \"copy_mixture\", which copies earlier tokens; "
              "set it to at least 2");
}

void check_needle_task(const Config& c, NeedleKind kind) {
  const bool passkey = kind == NeedleKind::passkey;
  const NeedleForm& form = needle_form(kind);
  const std::string task = "data.source = \"" + std::string(form.name) + "\"";
  require(c.model.vocab >= task_vocab, equals("model.vocab", c.model.vocab) + " is too small for " + task +
                                           ", whose texts are made of " + std::to_string(task_vocab) +
                                           " characters; set it to " + std::to_string(task_vocab));
  const std::int64_t shortest = form.shortest(passkey ? c.data.passkey.digits : c.data.niah.letters);
  require(c.data.seq_len >= shortest,
          equals("data.seq_len", c.data.seq_len) + " is too short for " + task + " with " +
              (passkey ? equals("data.passkey.digits", c.data.passkey.digits)
                       : equals("data.niah.letters", c.data.niah.letters)) +
              ": question and answers alone take more; set it to at least " + std::to_string(shortest));
  require(passkey || c.data.niah.min_depth <= c.data.niah.max_depth,
          equals("data.niah.min_depth", c.data.niah.min_depth) + " is above " +
              equals("data.niah.max_depth", c.data.niah.max_depth) + "; lower it");
}

void check_batch(const Config& c) {
  require(c.train.batch % c.leaves() == 0, equals("train.batch", c.train.batch) + " is not divisible by " +
                                               equals("distributed.leaves", c.distributed.leaves) +
                                               "; set distributed.leaves to a divisor of it such as " +
                                               std::to_string(largest_divisor(c.train.batch, c.leaves())));
  require(
      c.leaf_sequences() % c.micro_batch() == 0 || (c.leaves() > 1 && c.train.batch % c.micro_batch() == 0),
      equals("train.batch", c.train.batch) + " is not divisible by " +
          equals("train.micro_batch", c.train.micro_batch) +
          "; set train.micro_batch to a divisor of it such as " +
          std::to_string(largest_divisor(c.train.batch, c.micro_batch())) +
          ", or to 0 for the largest that fits the device");
}

void check_schedule(const Config& c) {
  require(c.train.steps || c.train.tokens,
          "train.steps = 0 and train.tokens = 0 leave nothing to train; set one of them, as in --set "
          "train.steps=1000");
  require(!c.train.steps || !c.train.tokens, equals("train.steps", c.train.steps) + " and " +
                                                 equals("train.tokens", c.train.tokens) +
                                                 " both set the length of the run; set one of them to 0");
  require(c.train.warmup <= c.steps(),
          equals("train.warmup", c.train.warmup) + " is longer than the run of " + std::to_string(c.steps()) +
              " steps (" + (c.train.steps ? "train.steps" : "train.tokens / (train.batch * data.seq_len)") +
              "); lower train.warmup or train longer");
  require(c.train.schedule == "constant" || c.train.min_lr <= c.train.lr,
          equals("train.min_lr", c.train.min_lr) + ", where the schedule ends, is above its peak " +
              equals("train.lr", c.train.lr) + "; lower train.min_lr or raise train.lr");
}

// recompute = gelu computes the GELU again from the stored product, which is rounded.
void check_recompute(const Config& c) {
  require(c.model.block != "gpt" || c.model.recompute != "gelu" || c.model.epilogue != "library",
          "model.recompute = \"gelu\" would give other hidden units than model.epilogue = \"library\", which "
          "computes them before the product is rounded; set model.epilogue to own, or model.recompute to "
          "none or block");
}

// Refuses products that would overflow or that no machine can hold. Whether the plan fits the device's memory
// is checked later.
void check_sizes(const Config& c) {
  constexpr double most_elements = 0x1p50, most_counted = 0x1p62;
  const double layers = static_cast<double>(c.model.layers), width = static_cast<double>(c.model.width),
               ff_width = static_cast<double>(c.ff_width());
  const double vocab = static_cast<double>(c.model.vocab);
  const auto with = [&](const char* key, std::int64_t value) { return ", " + equals(key, value); };
  const double mlp_matrices = c.model.block == "llama" ? 3 : 2, vocab_matrices = c.model.tied ? 1 : 2;
  const double parameters = layers * (4 * width * width + mlp_matrices * width * ff_width) +
                            vocab_matrices * vocab * width +
                            (c.has_part("learned") ? static_cast<double>(c.data.seq_len) * width : 0);
  require(parameters <= most_elements,
          equals("model.layers", c.model.layers) + with("model.width", c.model.width) +
              with("model.ff_width", c.ff_width()) + with("model.vocab", c.model.vocab) + ": " +
              equals("parameters", parameters) + " are more than any machine holds; lower one of them");
  const std::int64_t sequences = std::max<std::int64_t>(c.train.micro_batch, 1);  // at least
  const double tokens = static_cast<double>(sequences) * static_cast<double>(c.data.seq_len);
  const double activations = tokens * (layers * (6 * width + mlp_matrices * ff_width) + vocab);
  require(activations <= most_elements,
          equals("train.micro_batch", sequences) + with("data.seq_len", c.data.seq_len) +
              with("model.layers", c.model.layers) + with("model.width", c.model.width) +
              with("model.vocab", c.model.vocab) + ": " + equals("activations", activations) +
              " are more than any machine holds; lower one of them");
  const double counted = static_cast<double>(c.steps()) * static_cast<double>(c.train.batch) *
                         static_cast<double>(c.data.seq_len);
  require(counted <= most_counted,
          equals("steps", c.steps()) + with("train.batch", c.train.batch) +
              with("data.seq_len", c.data.seq_len) +
              ": the tokens of the run cannot be counted in 64 bits; lower one of them");
}

}  // namespace

void validate(const Config& config) {
  check_ranges(config);
  check_heads(config);
  check_attention(config);
  check_prior(config);
  check_rope(config);
  if (config.data.source == "shards") check_shards(config);
  if (config.data.source == "copy_mixture") check_copy_mixture(config);
  if (config.data.source == "passkey") check_needle_task(config, NeedleKind::passkey);
  if (config.data.source == "niah") check_needle_task(config, NeedleKind::niah);
  check_recompute(config);
  check_batch(config);
  check_schedule(config);
  check_sizes(config);
}

void require_length(const Config& config, std::int64_t length, const std::string& where) {
  const std::int64_t longest = config.data.seq_len;
  require(!config.has_part("learned") || length <= longest,
          where + ": model.attention = " + toml_string(config.model.attention) +
              " has one vector for each of the " + std::to_string(longest) +
              " positions of training (data.seq_len) and none beyond; it takes sequences of up to " +
              std::to_string(longest) + " tokens, not " + std::to_string(length));
}

}  // namespace goat
