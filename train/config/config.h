// Config: every setting of a run. Presets and files are TOML; `--set section.key=value` changes any key.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace goat {

// A wrong key, value or combination. The message names the key, the value and what is allowed. The program
// exits with code 2.
struct ConfigError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Config {
  struct Model {
    std::string block = "gpt";  // gpt, llama
    std::int64_t layers = 12;
    std::int64_t heads = 12;
    std::int64_t kv_heads = 0;  // of keys and values; 0: as heads
    std::int64_t width = 768;
    std::int64_t ff_width = 0;  // 0: 4 * width
    std::int64_t vocab = 50257;
    bool tied = true;                // the head shares the embedding's weights
    bool qk_norm = false;            // RMSNorm of each head's q and k
    std::string bias = "auto";       // of linear layers and LayerNorm: auto (as the block says), true, false
    double norm_eps = 1e-5;          // added to a norm's mean of squares
    std::string attention = "goat";  // none, or parts that tell of positions: goat, rope, goat+rope, ...
    double rope_base = 10000;
    double rope_fraction = 1;  // share of a head's content dimensions that rope turns
    // rsqrt: 1/sqrt(content dimension); none: 1 (reproduces the authors' unscaled baselines)
    std::string attn_scale = "rsqrt";
    std::string precision = "auto";  // auto: bf16 on a GPU, fp32 on the cpu; fp32; bf16
    std::string tf32 = "none";       // fp32 mode on cuda: GEMMs that may use TF32: none, all
    std::string epilogue = "own";    // own, library: where the GELU of a GPT block's MLP is computed
    std::string recompute = "none";  // none, gelu, block
  } model;

  struct Prior {
    std::int64_t pos_rank = 2;  // R
    std::int64_t abs_rank = 8;  // M
    std::int64_t lane_dim = 0;  // d_p; 0: 2R + 2
    double base = 10000;
    double abs_base = 10000;
    std::string init = "zero";     // zero, random, alibi
    std::string recency = "free";  // free, softplus, off
    bool learned_frequencies = false;
    std::int64_t sink_hidden = 0;   // n; 0: min(2(2M+2), max(2H, 4))
    double sink_init_scale = 1e-3;  // std of the sink MLP's random weights
    double lr_scale = 1;            // learning rate of the prior, as a multiple of train.lr
    double forget_lr_scale = 1;     // the same for forget's gates
  } prior;

  struct CopyMixture {
    double p_first = 0.25;
    double p_prev = 0.25;
  };
  struct Passkey {
    std::int64_t digits = 8;
    double max_depth = 0.8;
  };
  struct Niah {
    std::int64_t letters = 12;
    double min_depth = 0.1;
    double max_depth = 0.9;
  };
  struct Data {
    std::string source = "shards";      // shards, copy_mixture, passkey, niah
    std::string train;                  // glob pattern of shards
    std::string mixture;                // several of them, each with its weight (train/config/mixture.h)
    std::string val;                    // glob pattern of shards; empty: no validation
    std::int64_t seq_len = 2048;        // T
    std::string block = "bos";          // bos, window, crop
    std::int64_t bos = 50256;           // token before every block in bos mode
    std::int64_t record_tokens = 6000;  // length of the records that crop mode cuts sequences from
    CopyMixture copy_mixture;
    Passkey passkey;
    Niah niah;
  } data;

  struct Train {
    std::int64_t steps = 0;        // exactly one of steps and tokens is positive
    std::int64_t tokens = 0;       // steps = ceil(tokens / (batch * seq_len))
    std::int64_t batch = 128;      // sequences per step, over all ranks
    std::int64_t micro_batch = 0;  // sequences per forward pass; 0: the largest that fits the device
    double lr = 1e-4;
    double min_lr = 3e-5;
    std::int64_t warmup = 2000;
    std::string schedule = "cosine";  // after the warm-up: cosine, wsd, constant
    double decay_share = 0.2;         // wsd: share of the steps, the last ones, in which the rate falls
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    double clip = 1.0;                 // 0: off
    std::string loss = "mean";         // mean, span, mixed
    double span_weight = 10;           // mixed: of the span's mean against the mean of all targets
    std::string rounding = "nearest";  // of the fp32 master weights to bf16: nearest, stochastic
    std::int64_t seed = 1;
    bool deterministic = true;
    std::string cuda_graph = "auto";  // auto, on, off
    // Updates whose loss or gradient norm is more than spike_z standard deviations above the window's mean
    // are skipped. 0: off.
    double spike_z = 0;
    std::int64_t spike_window = 128;  // number of updates in that window
    std::int64_t max_skips = 10;      // stop after this many skipped updates in a row
  } train;

  struct Eval {
    std::int64_t interval = 0;          // steps between validations; 0: only at the end
    std::int64_t tokens = 1'048'576;    // of validation data, in whole sequences; 0: no validation
    std::int64_t retired_batches = -1;  // eval.batches of older versions, until resolve_retired; -1: not set
  } eval;

  struct Checkpoint {
    std::int64_t interval = 0;   // steps between checkpoints; 0: by time alone
    double minutes = 10;         // wall time in minutes between checkpoints; 0: by steps alone
    std::int64_t keep = 3;       // number of newest checkpoints that are kept; 0: all
    std::int64_t milestone = 0;  // checkpoints at multiples of this step are kept for ever; 0: none
  } checkpoint;

  struct Distributed {
    std::int64_t leaves = 0;         // parts of the batch whose gradients are added in a fixed tree; 0: ranks
    std::int64_t bucket_mib = 0;     // MiB of gradients that travel together; 0: max(64, 2 * ranks)
    bool overlap = true;             // whether ranks exchange while they compute
    std::string reduce = "ordered";  // who adds gradients: SumParts in a fixed order, or "nccl"
    std::string wire = "f32";        // as which gradients travel: "f32" or "bf16"
    std::int64_t levels = 0;         // in which gradients are added; 2: on each node first; 0: 2 where the
                                     // bits stay the same
    std::int64_t check_interval = 100;  // steps between comparisons of all ranks' weights; 0: none
    double start_timeout = 300;         // seconds until all ranks have come
    double heartbeat_timeout = 30;      // seconds without a sign of life of a rank
    double progress_timeout = 600;      // seconds in which no rank gets on
  } distributed;

  struct Log {
    std::int64_t interval = 1;  // steps between progress lines
  } log;

  // Values computed from the settings above.
  std::int64_t head_dim() const { return model.width / model.heads; }                      // d_h
  std::int64_t kv_heads() const { return model.kv_heads ? model.kv_heads : model.heads; }  // H_k
  std::int64_t qkv_heads() const { return model.heads + 2 * kv_heads(); }  // of q, k and v together
  bool has_part(const std::string& part) const;        // whether model.attention names it, alone or in a sum
  bool has_prior() const { return has_part("goat"); }  // the learned prior, which takes lanes
  std::vector<std::string> parts_with_slopes() const;  // those that give each head of attention a slope
  // d_p
  std::int64_t lane_dim() const {
    return !has_prior() ? 0 : prior.lane_dim ? prior.lane_dim : 2 * prior.pos_rank + 2;
  }
  std::int64_t content_dim() const { return head_dim() - lane_dim(); }  // d_c
  std::int64_t rope_dim() const;  // the first coordinates of a head, which rope turns: 2 round(f d_c / 2)
  std::int64_t tokens_per_step() const { return train.batch * data.seq_len; }
  std::int64_t ff_width() const { return model.ff_width ? model.ff_width : 4 * model.width; }
  // distributed.leaves; 1 where the ranks have not replaced the 0 yet
  std::int64_t leaves() const { return distributed.leaves ? distributed.leaves : 1; }
  bool library_adds() const { return distributed.reduce == "nccl"; }  // gradients of several ranks
  std::int64_t leaf_sequences() const { return train.batch / leaves(); }
  // train.micro_batch; the whole leaf where no device has replaced the 0 yet
  std::int64_t micro_batch() const { return train.micro_batch ? train.micro_batch : leaf_sequences(); }
  std::int64_t sink_features() const { return 2 * prior.abs_rank + 2; }  // F
  std::int64_t sink_hidden() const;                                      // n
  std::int64_t steps() const;                                            // of a run from its start
};

// The largest divisor of a positive number that is not above `most`.
constexpr std::int64_t largest_divisor(std::int64_t number, std::int64_t most) {
  std::int64_t divisor = std::min(number, most);
  while (number % divisor != 0) --divisor;
  return divisor;
}

struct Preset {
  std::string name;
  std::string description;
  std::string toml;
};
const std::vector<Preset>& presets();

// Receives remarks about a config that is not wrong: a retired key and its present meaning.
using ConfigNotes = std::function<void(const std::string&)>;

// Reads a preset or a .toml file, applies the `section.key=value` settings in order, and validates the
// result. Throws ConfigError.
Config load_config(const std::string& name_or_file, const std::vector<std::string>& settings,
                   const ConfigNotes& note = {});

// The same for the TOML text of a config. `origin` names the text in messages.
Config read_config(const std::string& text, const std::string& origin,
                   const std::vector<std::string>& settings, const ConfigNotes& note = {});

// Parses TOML text and changes the keys of `config` that it sets. `origin` names the text in messages. Does
// not validate combinations. Throws ConfigError.
void apply_toml(Config& config, const std::string& text, const std::string& origin,
                const ConfigNotes& note = {});
void apply_setting(Config& config, const std::string& setting);  // "section.key=value"; throws ConfigError
// Replaces keys of older versions by present ones. In eval.batches a batch counts as `sequences` sequences.
void resolve_retired(Config& config, std::int64_t sequences, const ConfigNotes& note = {});
// Throws ConfigError for a value out of range or a combination that cannot work.
void validate(const Config& config);
// Throws ConfigError if the model cannot take sequences of `length` tokens. `where` begins the message: the
// option that asked for them.
void require_length(const Config& config, std::int64_t length, const std::string& where);

// The config as TOML: every key with its value and a short comment. Reading it with load_config gives
// the same config.
std::string to_toml(const Config& config);

}  // namespace goat
