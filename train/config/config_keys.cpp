#include "train/config/config_keys.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>

namespace goat {

std::vector<Key> config_keys(Config& c) {
  constexpr std::int64_t unbounded = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t max_tokens = 1'000'000'000'000'000;
  constexpr std::int64_t max_answer = 1'000;
  constexpr OnResume silent{OnResume::silent}, reported{OnResume::reported}, begun{OnResume::begun};
  constexpr OnResume same_model{OnResume::refused, "a run goes on with the model it began with"};
  constexpr OnResume same_length{
      OnResume::refused,
      "the prior's features are scaled by it, and the position in the data counts such sequences"};
  return {
      {"model.block", TextKey{&c.model.block, {"gpt", "llama"}}, same_model, "kind of transformer block"},
      {"model.layers", IntegerKey{&c.model.layers, 1, 10'000}, same_model, "L, transformer blocks"},
      {"model.heads", IntegerKey{&c.model.heads, 1, 10'000}, same_model, "H, attention heads; divides width"},
      {"model.kv_heads", IntegerKey{&c.model.kv_heads, 0, 10'000}, same_model,
       "H_k, heads of keys and values, each for H / H_k heads of queries; divides heads; 0: as heads"},
      {"model.width", IntegerKey{&c.model.width, 1, 1'000'000}, same_model, "C"},
      {"model.ff_width", IntegerKey{&c.model.ff_width, 0, 10'000'000}, same_model,
       "hidden units of the MLP; 0: 4 * width"},
      {"model.vocab", IntegerKey{&c.model.vocab, 2, 10'000'000}, same_model, "V, token ids are 0 .. V-1"},
      {"model.tied", FlagKey{&c.model.tied}, same_model, "the head uses the embedding's weights"},
      {"model.bias", TextKey{&c.model.bias, {"auto", "true", "false"}}, same_model,
       "of linear layers and LayerNorm; auto: as the block says"},
      {"model.norm_eps", NumberKey{&c.model.norm_eps, 1e-30, 1}, same_model,
       "added to the mean of squares in every norm"},
      {"model.qk_norm", FlagKey{&c.model.qk_norm}, same_model,
       "RMSNorm of each head's q and k, before positions are applied"},
      {"model.attention",
       TextKey{
           &c.model.attention,
           {"goat", "rope", "rope_pi", "alibi", "alibi_learned", "forget", "sinusoidal", "learned", "none"},
           true},
       same_model, "how the model learns of positions"},
      {"model.rope_base", NumberKey{&c.model.rope_base, 1, 1e12}, same_model,
       "rope: frequencies are base^(-2r/d), d the dimensions that it turns"},
      {"model.rope_fraction", NumberKey{&c.model.rope_fraction, 0, 1, true}, same_model,
       "share of a head's content dimensions that rope turns, in whole pairs"},
      {"model.attn_scale", TextKey{&c.model.attn_scale, {"rsqrt", "none"}}, same_model,
       "scale of the content logits: 1/sqrt(content dimension) or 1"},
      {"model.precision", TextKey{&c.model.precision, {"auto", "fp32", "bf16"}}, reported,
       "of matrix products and activations, on the cpu of products alone; auto: bf16 on a GPU, fp32 on the "
       "cpu"},
      {"model.tf32", TextKey{&c.model.tf32, {"none", "all"}}, reported,
       "GEMMs that may use TF32 in fp32 mode on a GPU"},
      {"model.epilogue", TextKey{&c.model.epilogue, {"own", "library"}}, reported,
       "who computes GELU on a GPU; library: cuBLASLt, from unrounded sums, so not with recompute = gelu"},
      {"model.recompute", TextKey{&c.model.recompute, {"none", "gelu", "block"}}, silent,
       "activations computed again in the backward pass to save memory"},

      {"prior.pos_rank", IntegerKey{&c.prior.pos_rank, 1, 10'000}, same_model, "R, relative Fourier modes"},
      {"prior.abs_rank", IntegerKey{&c.prior.abs_rank, 0, 10'000}, same_model,
       "M, absolute Fourier modes of the sink features"},
      {"prior.lane_dim", IntegerKey{&c.prior.lane_dim, 0, 100'000}, same_model,
       "head dimensions given to the prior; 0: 2R + 2"},
      {"prior.base", NumberKey{&c.prior.base, 1, 1e12}, same_model,
       "relative frequencies are base^(-(r-1)/(R-1))"},
      {"prior.abs_base", NumberKey{&c.prior.abs_base, 1, 1e12}, same_model,
       "the same for the absolute modes"},
      {"prior.init", TextKey{&c.prior.init, {"zero", "random", "alibi"}}, begun, "the prior before training"},
      {"prior.recency", TextKey{&c.prior.recency, {"free", "softplus", "off"}}, same_model,
       "slope of a head: any real number, positive only, or no slope"},
      {"prior.learned_frequencies", FlagKey{&c.prior.learned_frequencies}, same_model,
       "train the relative frequencies too"},
      {"prior.sink_hidden", IntegerKey{&c.prior.sink_hidden, 0, 1'000'000}, same_model,
       "n, hidden units of the sink MLP; 0: min(2(2M + 2), max(2H, 4))"},
      {"prior.sink_init_scale", NumberKey{&c.prior.sink_init_scale, 0, 100}, begun,
       "std of the sink MLP's random weights"},
      {"prior.lr_scale", NumberKey{&c.prior.lr_scale, 0, 1000}, reported,
       "learning rate of the prior, and of alibi_learned's slopes, as a multiple of the others'"},
      {"prior.forget_lr_scale", NumberKey{&c.prior.forget_lr_scale, 0, 1000}, reported,
       "the same for forget's gates"},

      {"data.source", TextKey{&c.data.source, {"shards", "copy_mixture", "passkey", "niah"}}, reported,
       "token files, or a built-in task"},
      {"data.train", TextKey{&c.data.train, {}}, reported, "glob of training shards"},
      {"data.mixture", TextKey{&c.data.mixture, {}}, reported,
       "in place of data.train: several globs with weights, as in \"0.7 a/train_*.bin, 0.3 b/train_*.bin\""},
      {"data.val", TextKey{&c.data.val, {}}, reported, "glob of validation shards; empty: no validation"},
      {"data.seq_len", IntegerKey{&c.data.seq_len, 1, 16'000'000}, same_length, "T, tokens in a sequence"},
      {"data.block", TextKey{&c.data.block, {"bos", "window", "crop"}}, reported,
       "a sequence is BOS + the next T tokens of the stream, a plain window of it, or a window in a record"},
      {"data.bos", IntegerKey{&c.data.bos, 0, 10'000'000}, reported, "the BOS token of block = bos"},
      {"data.record_tokens", IntegerKey{&c.data.record_tokens, 2, 2'000'000'000}, reported,
       "tokens of a record of block = crop; each shard holds whole records"},
      {"data.copy_mixture.p_first", NumberKey{&c.data.copy_mixture.p_first, 0, 1}, reported,
       "probability that a token copies the first one"},
      {"data.copy_mixture.p_prev", NumberKey{&c.data.copy_mixture.p_prev, 0, 1}, reported,
       "probability that it copies the one before the current token"},
      {"data.passkey.digits", IntegerKey{&c.data.passkey.digits, 1, max_answer}, reported,
       "digits of the passkey"},
      {"data.passkey.max_depth", NumberKey{&c.data.passkey.max_depth, 0, 1}, reported,
       "it stands after 0 to this share of the filler"},
      {"data.niah.letters", IntegerKey{&c.data.niah.letters, 1, max_answer}, reported,
       "letters of the needle"},
      {"data.niah.min_depth", NumberKey{&c.data.niah.min_depth, 0, 1}, reported,
       "least share of the filler before the needle"},
      {"data.niah.max_depth", NumberKey{&c.data.niah.max_depth, 0, 1}, reported, "greatest share"},

      {"train.steps", IntegerKey{&c.train.steps, 0, 1'000'000'000}, reported,
       "optimizer steps; 0: from train.tokens"},
      {"train.tokens", IntegerKey{&c.train.tokens, 0, max_tokens}, reported,
       "training tokens; 0: from train.steps"},
      {"train.batch", IntegerKey{&c.train.batch, 1, 10'000'000}, reported,
       "sequences a step, over all ranks"},
      {"train.micro_batch", IntegerKey{&c.train.micro_batch, 0, 10'000'000}, reported,
       "sequences a forward pass; divides batch; 0: the largest that fits the device"},
      {"train.lr", NumberKey{&c.train.lr, 0, 10, true}, reported, "peak learning rate"},
      {"train.min_lr", NumberKey{&c.train.min_lr, 0, 10}, reported,
       "learning rate of the last step, except with a constant schedule"},
      {"train.warmup", IntegerKey{&c.train.warmup, 0, 1'000'000'000}, reported, "steps of linear warm-up"},
      {"train.schedule", TextKey{&c.train.schedule, {"cosine", "wsd", "constant"}}, reported,
       "learning rate after the warm-up: cosine to min_lr; constant, then linear to min_lr (wsd); constant"},
      {"train.decay_share", NumberKey{&c.train.decay_share, 0, 1}, reported,
       "wsd: share of the steps, the last ones, in which the learning rate falls"},
      // Outside these limits the float32 arithmetic of AdamW would round 1 - beta or eps to zero.
      {"train.beta1", NumberKey{&c.train.beta1, 0, 0.999999}, reported,
       "AdamW: decay of the running mean of gradients"},
      {"train.beta2", NumberKey{&c.train.beta2, 0, 0.999999}, reported,
       "AdamW: decay of the running mean of their squares"},
      {"train.eps", NumberKey{&c.train.eps, 1e-30, 1}, reported,
       "AdamW: added to the root of the mean of squares"},
      {"train.weight_decay", NumberKey{&c.train.weight_decay, 0, 100}, reported,
       "on matrices only: not on biases, norms and the prior"},
      {"train.clip", NumberKey{&c.train.clip, 0, 1e6}, reported,
       "largest global gradient norm; 0: no clipping"},
      {"train.loss", TextKey{&c.train.loss, {"mean", "span", "mixed"}}, reported,
       "mean over all targets, over those of the answer (span), or (mean + span_weight * span) / "
       "(1 + span_weight)"},
      {"train.span_weight", NumberKey{&c.train.span_weight, 0, 1e6}, reported, "of the mixed loss"},
      {"train.rounding", TextKey{&c.train.rounding, {"nearest", "stochastic"}}, reported,
       "of the fp32 master weights to bf16"},
      {"train.seed", IntegerKey{&c.train.seed, 0, unbounded}, reported, "initialisation and data order"},
      {"train.deterministic", FlagKey{&c.train.deterministic}, reported,
       "bitwise the same losses on every run; the cpu always is"},
      {"train.cuda_graph", TextKey{&c.train.cuda_graph, {"auto", "on", "off"}}, silent,
       "record a micro-batch's work once and replay it; auto: where the device can"},
      {"train.spike_z", NumberKey{&c.train.spike_z, 0, 1000}, reported,
       "skip updates with loss or gradient norm so many deviations above the mean; 0: off"},
      {"train.spike_window", IntegerKey{&c.train.spike_window, 2, 1'000'000}, reported,
       "updates that mean and deviation are taken over"},
      {"train.max_skips", IntegerKey{&c.train.max_skips, 1, 1'000'000}, reported,
       "stop after so many skipped updates in a row; 1: each step is waited for"},

      {"eval.interval", IntegerKey{&c.eval.interval, 0, 1'000'000'000}, silent,
       "steps between validations; 0: only at the end"},
      {"eval.tokens", IntegerKey{&c.eval.tokens, 0, max_tokens}, reported,
       "tokens of a validation, in whole sequences from the first on; 0: no validation"},

      {"checkpoint.interval", IntegerKey{&c.checkpoint.interval, 0, 1'000'000'000}, silent,
       "steps between checkpoints; 0: by time alone"},
      {"checkpoint.minutes", NumberKey{&c.checkpoint.minutes, 0, 1e6}, silent,
       "minutes between checkpoints; 0: by steps alone"},
      {"checkpoint.keep", IntegerKey{&c.checkpoint.keep, 0, 1'000'000}, silent,
       "newest checkpoints kept; 0: all"},
      {"checkpoint.milestone", IntegerKey{&c.checkpoint.milestone, 0, 1'000'000'000}, silent,
       "checkpoints of steps that this divides are kept for ever; 0: none"},

      {"distributed.leaves", IntegerKey{&c.distributed.leaves, 0, 1024}, reported,
       "parts of the batch whose gradients are added in a fixed tree, a multiple of the ranks; 0: one a "
       "rank"},
      {"distributed.bucket_mib", IntegerKey{&c.distributed.bucket_mib, 0, 65'536}, silent,
       "MiB of gradients that ranks exchange at a time; 0: max(64, 2 * ranks)"},
      {"distributed.overlap", FlagKey{&c.distributed.overlap}, silent,
       "exchange gradients and weights while the passes run; no bit depends on it"},
      {"distributed.reduce", TextKey{&c.distributed.reduce, {"ordered", "nccl"}}, reported,
       "who adds the ranks' gradients: our kernel, in a fixed order, or NCCL, in its own"},
      {"distributed.wire", TextKey{&c.distributed.wire, {"f32", "bf16"}}, reported,
       "numbers as which gradients travel between ranks; bf16 is half the bytes, rounded once a level"},
      {"distributed.levels", IntegerKey{&c.distributed.levels, 0, 2}, reported,
       "2: gradients are added on each node first, then among nodes; 0: 2 where that keeps the bits, else 1"},
      {"distributed.check_interval", IntegerKey{&c.distributed.check_interval, 0, 1'000'000'000}, silent,
       "steps between comparisons of the ranks' weights; 0: at the start and at saves alone"},
      {"distributed.start_timeout", NumberKey{&c.distributed.start_timeout, 1, 86'400}, silent,
       "seconds that ranks wait for each other at the start"},
      {"distributed.heartbeat_timeout", NumberKey{&c.distributed.heartbeat_timeout, 1, 86'400}, silent,
       "seconds without a sign of life after which a rank counts as lost"},
      {"distributed.progress_timeout", NumberKey{&c.distributed.progress_timeout, 1, 1e6}, silent,
       "seconds in which no rank gets on after which the run ends; six times as many while saving"},

      {"log.interval", IntegerKey{&c.log.interval, 1, 1'000'000'000}, silent, "steps between progress lines"},
  };
}

std::vector<Key> retired_keys(Config& c) {
  return {{"eval.batches", IntegerKey{&c.eval.retired_batches, 0, 1'000'000'000},
           OnResume{OnResume::reported}, "validation data, in batches"}};
}

std::vector<std::string> config_sections(const std::vector<Key>& keys) {
  std::vector<std::string> sections;
  for (const Key& key : keys)
    if (sections.empty() || sections.back() != key.section()) sections.push_back(key.section());
  return sections;
}

std::vector<std::string> terms_of(const std::string& sum) {
  std::vector<std::string> terms(1);
  for (const char c : sum) {
    if (c == '+')
      terms.emplace_back();
    else
      terms.back() += c;
  }
  return terms;
}

namespace {

// The shortest text that a parser reads back as the same double.
std::string shortest(double value) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

std::string joined(const std::vector<std::string>& words) {
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : ", ") + word;
  return list;
}

bool allowed(const IntegerKey& slot) { return slot.low <= *slot.value && *slot.value <= slot.high; }
// False for NaN.
bool allowed(const NumberKey& slot) {
  return (slot.above_low_only ? slot.low < *slot.value : slot.low <= *slot.value) && *slot.value <= slot.high;
}
bool allowed(const FlagKey&) { return true; }
bool allowed(const TextKey& slot) {
  if (slot.choices.empty()) return std::none_of(slot.value->begin(), slot.value->end(), is_control);
  const auto is_choice = [&](const std::string& text) {
    return std::find(slot.choices.begin(), slot.choices.end(), text) != slot.choices.end();
  };
  if (!slot.sums) return is_choice(*slot.value);
  const std::vector<std::string> terms = terms_of(*slot.value);
  return std::all_of(terms.begin(), terms.end(), is_choice);
}

std::string expected(const IntegerKey& slot) {
  const std::string low = std::to_string(slot.low);
  if (slot.high == std::numeric_limits<std::int64_t>::max())
    return "an integer of at least " + low + " that fits in 64 bits";
  return "an integer from " + low + " to " + std::to_string(slot.high);
}
std::string expected(const NumberKey& slot) {
  const std::string to = shortest(slot.high);
  return slot.above_low_only ? "a number greater than " + shortest(slot.low) + " and at most " + to
                             : "a number from " + shortest(slot.low) + " to " + to;
}
std::string expected(const FlagKey&) { return "true or false"; }
std::string expected(const TextKey& slot) {
  if (slot.choices.empty()) return "a string without control characters";
  std::vector<std::string> choices;
  for (const std::string& choice : slot.choices) choices.push_back(toml_string(choice));
  const std::string one = (choices.size() == 1 ? "" : "one of ") + joined(choices);
  return slot.sums ? one + ", or a sum such as \"" + slot.choices[0] + "+" + slot.choices[1] + "\"" : one;
}

std::string as_toml(const IntegerKey& slot) { return std::to_string(*slot.value); }
std::string as_toml(const NumberKey& slot) {
  const std::string digits = shortest(*slot.value);
  return digits.find_first_not_of("-0123456789") == std::string::npos ? digits + ".0" : digits;
}
std::string as_toml(const FlagKey& slot) { return *slot.value ? "true" : "false"; }
std::string as_toml(const TextKey& slot) { return toml_string(*slot.value); }

// Levenshtein distance: the smallest number of insertions, deletions and replacements of a character that
// turn `a` into `b`.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j + 1] + 1, row[j] + 1});
    }
  }
  return row.back();
}

// The largest number of typing errors for which a key is still suggested: two, or a third of a
// longer name's characters.
std::size_t forgiven(const std::string& typed) { return std::max<std::size_t>(2, typed.size() / 3); }
// No longer text resembles a key, and the time for the distance is quadratic.
constexpr std::size_t longest_name = 64;

std::string nearest_key(const std::string& typed, const std::vector<Key>& keys) {
  if (typed.size() > longest_name) return "";
  const std::string typed_leaf = typed.substr(typed.rfind('.') + 1);
  // Compares the whole name, and the last part alone because the section may be missing or wrong, which
  // counts as one error. If two keys are equally near, the more similar whole name wins.
  std::pair<std::size_t, std::size_t> best{forgiven(typed) + 1, 0};
  std::string name;
  for (const Key& key : keys) {
    const std::size_t whole = edit_distance(typed, key.name);
    const std::pair candidate{std::min(whole, 1 + edit_distance(typed_leaf, key.leaf())), whole};
    if (candidate < best) {
      best = candidate;
      name = key.name;
    }
  }
  return best.first <= forgiven(typed) ? name : "";
}

}  // namespace

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

bool value_allowed(const Key& key) {
  return std::visit([](const auto& slot) { return allowed(slot); }, key.slot);
}

std::string expected_value(const Key& key) {
  return std::visit([](const auto& slot) { return expected(slot); }, key.slot);
}

std::string value_as_toml(const Key& key) {
  return std::visit([](const auto& slot) { return as_toml(slot); }, key.slot);
}

std::string toml_string(const std::string& text) {
  constexpr char hex[] = "0123456789ABCDEF";
  std::string toml = "\"";
  for (const char c : text) {
    if (is_control(c)) {
      toml += std::string("\\u00") + hex[c >> 4] + hex[c & 15];
    } else {
      if (c == '"' || c == '\\') toml += '\\';
      toml += c;
    }
  }
  return toml + '"';
}

std::string nearest(const std::string& typed, const std::vector<std::string>& candidates) {
  if (typed.size() > longest_name) return "";
  std::size_t best = forgiven(typed) + 1;
  std::string name;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(typed, candidate);
    if (distance < best) {
      best = distance;
      name = candidate;
    }
  }
  return name;
}

std::string key_suggestion(const std::string& typed, const std::vector<Key>& keys) {
  if (const std::string name = nearest_key(typed, keys); !name.empty()) return "did you mean " + name + "?";
  const std::string section = typed.substr(0, std::min(typed.rfind('.'), typed.size()));
  std::vector<std::string> leaves;
  for (const Key& key : keys)
    if (key.section() == section) leaves.push_back(key.leaf());
  if (!leaves.empty()) return "the keys of section " + section + " are " + joined(leaves);
  return "the sections are " + joined(config_sections(keys));
}

}  // namespace goat
