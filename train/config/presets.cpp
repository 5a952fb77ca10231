// The configs compiled into the binary. A key that a preset leaves out has the
// default in train/config/config.h.
#include "train/config/config.h"

namespace goat {
namespace {

constexpr char copy_mixture[] = R"([model]
layers = 1
heads = 2
width = 64
vocab = 64

[prior]
pos_rank = 8
abs_rank = 8
init = "zero"
recency = "off"  # the task has a first and a previous token, but no decay to learn

[data]
source = "copy_mixture"
seq_len = 64
copy_mixture.p_first = 0.25
copy_mixture.p_prev = 0.25

[train]
steps = 800
batch = 32
lr = 1e-2
min_lr = 1e-3
warmup = 50
beta1 = 0.9
beta2 = 0.95
weight_decay = 0.1
clip = 1.0

[eval]
tokens = 131072

[log]
interval = 50
)";

constexpr char shakespeare[] = R"([model]
layers = 4
heads = 4
width = 128
vocab = 256  # bytes

[prior]
pos_rank = 4
abs_rank = 8
init = "zero"
recency = "free"

[data]
train = "data/shakespeare/train_*.bin"
val = "data/shakespeare/val_*.bin"
seq_len = 128
block = "window"

[train]
steps = 1500
batch = 32
lr = 2e-3
min_lr = 2e-4
warmup = 100
beta1 = 0.9
beta2 = 0.95
weight_decay = 0.1
clip = 1.0

[eval]
interval = 250
tokens = 65536  # characters

[log]
interval = 10
)";

constexpr char passkey[] = R"([model]
layers = 12
heads = 8
width = 512
vocab = 70  # characters

[prior]
pos_rank = 8
abs_rank = 8
init = "zero"
sink_init_scale = 3e-3

[data]
source = "passkey"
seq_len = 1024
passkey.digits = 8
passkey.max_depth = 0.8

[train]
steps = 2000
batch = 32
lr = 3e-4
min_lr = 0.0
warmup = 400
beta1 = 0.9
beta2 = 0.999
weight_decay = 0.01
clip = 1.0
loss = "mixed"
span_weight = 10.0

[eval]
interval = 250
tokens = 65536

[log]
interval = 10
)";

constexpr char niah[] = R"([model]
layers = 12
heads = 8
width = 512
vocab = 70  # characters

[prior]
pos_rank = 8
abs_rank = 8
init = "zero"
sink_init_scale = 3e-3

[data]
source = "niah"
seq_len = 256
niah.letters = 12
niah.min_depth = 0.1
niah.max_depth = 0.9

[train]
steps = 2000
batch = 32
lr = 3e-4
min_lr = 0.0
warmup = 400
beta1 = 0.9
beta2 = 0.999
weight_decay = 0.01
clip = 1.0
loss = "span"

[eval]
interval = 250
tokens = 65536

[log]
interval = 10
)";

constexpr const char* c4_125m = R"(# The published C4 run (goat.md): 4.0e9 tokens of allenai/c4 en.
[model]
layers = 12
heads = 12
width = 768
vocab = 50257

[prior]
pos_rank = 2
abs_rank = 8
init = "zero"

[data]
source = "shards"
train = "data/c4/train_*.bin"
val = "data/c4/val_*.bin"
seq_len = 2048
block = "bos"
bos = 50256

[train]
steps = 15259
batch = 128  # 262,144 tokens a step
micro_batch = 16
lr = 1e-4
min_lr = 3e-5
warmup = 2000
beta1 = 0.9
beta2 = 0.95
weight_decay = 0.1
clip = 1.0

[eval]
interval = 250
tokens = 1048576

[checkpoint]
interval = 500
milestone = 5000

[log]
interval = 10
)";

constexpr const char* fineweb_1b =
    R"(# The published FineWeb run (goat.md): 3.15e9 tokens, Llama-style blocks, tied embedding.
[model]
block = "llama"
layers = 22
heads = 32
width = 2048
ff_width = 5632
vocab = 50257

[prior]
pos_rank = 4
abs_rank = 8
init = "zero"

[data]
source = "shards"
train = "data/fineweb/train_*.bin"
val = "data/fineweb/val_*.bin"
seq_len = 2048
block = "bos"
bos = 50256

[train]
steps = 12000
batch = 128  # 262,144 tokens a step
micro_batch = 4
lr = 3e-4
min_lr = 3e-5
warmup = 2000
beta1 = 0.9
beta2 = 0.95
weight_decay = 0.1
clip = 1.0

[eval]
interval = 250
tokens = 1048576

[checkpoint]
interval = 500
milestone = 5000

[log]
interval = 10
)";

constexpr const char* genome_25m =
    R"(# The human genome as the published code runs it, 25M parameters. The schedule is our choice.
[model]
layers = 8
heads = 8
width = 512
vocab = 5  # A C G N T

)";

constexpr const char* genome_125m =
    R"(# The human genome at the published depth and width, which make 84M parameters with 5 tokens. The
# schedule is our choice.
[model]
layers = 12
heads = 12
width = 768
vocab = 5  # A C G N T

)";

// What both genome models share.
constexpr const char* genome = R"([prior]
pos_rank = 2
abs_rank = 8
init = "zero"

[data]
source = "shards"
train = "data/genome/train_*.bin"
val = "data/genome/val_*.bin"
seq_len = 1024
block = "crop"
record_tokens = 6000

[train]
steps = 1000
batch = 8
lr = 3e-4
min_lr = 3e-5
warmup = 100
beta1 = 0.9
beta2 = 0.999
weight_decay = 0.1
clip = 1.0

[eval]
interval = 100
tokens = 1048576

[log]
interval = 10
)";

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      {"copy_mixture",
       "built-in task: copies of the first and the previous token; shows the learned prior, needs no data, "
       "runs under a minute on a CPU",
       copy_mixture},
      {"shakespeare",
       "4-layer byte-level GPT on tinyshakespeare (data/shakespeare): perplexity beyond the training length, "
       "minutes on a CPU",
       shakespeare},
      {"passkey",
       "built-in task: find 8 digits in random letters, T = 1024; 12 layers, needs no data, for a GPU",
       passkey},
      {"niah",
       "built-in task: a needle in a haystack of four letters, T = 256; 12 layers, needs no data, for a GPU",
       niah},
      {"c4_125m", "the published 125M GPT on C4 (data/c4), T = 2048, 4.0e9 tokens", c4_125m},
      {"fineweb_1b", "the published 1.2B Llama-style GPT on FineWeb (data/fineweb), T = 2048, 3.15e9 tokens",
       fineweb_1b},
      {"genome_25m", "25M GPT on the human genome (data/genome), T = 1024, 1,000 steps",
       std::string(genome_25m) + genome},
      {"genome_125m",
       "GPT of 125M size (84M with 5 tokens) on the human genome (data/genome), T = 1024, 1,000 steps",
       std::string(genome_125m) + genome},
  };
  return all;
}

}  // namespace goat
