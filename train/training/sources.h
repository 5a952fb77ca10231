// The data sources of a config.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/token_source.h"
#include "train/config/config.h"
#include "train/replicas/ranks.h"

namespace goat {

// How the ranks of a run share the work on one source.
struct DataShare {
  std::string scan{};  // rank 0's TokenSource::scan() of this source; empty: read every shard's header here
  // The background check takes every check_size-th shard, from the shard check_rank on.
  int check_rank = 0;
  int check_size = 1;
};

// These throw DataError if the data cannot be used, and ConfigError if train.loss asks for answers that they
// do not have.
std::unique_ptr<TokenSource> open_training_source(const Config& config, const DataShare& share = {});
// Null if the config has none.
std::unique_ptr<TokenSource> open_validation_source(const Config& config, const DataShare& share = {});

// The data of a run, which all ranks open together: rank 0 reads the headers of all shards, and the others
// are told what it found. validation is null if the config has none.
struct RunData {
  std::unique_ptr<TokenSource> training, validation;
};
RunData open_data(const Config& config, Ranks& ranks);

// The tokenizer that the vocabulary size suggests: "dna", "bytes", "gpt2", or empty if none.
std::string assumed_tokenizer(const Config& config);

// The tokenizer that made the shards and how this is known, as text for the user.
std::string tokenizer_text(const Config& config, const TokenSource& data);

// The source for evaluating a trained model, whatever the section [eval] of the config says: the
// shards of `files` in this order if there are any, otherwise the validation data. Null if the config
// has no validation data.
std::unique_ptr<TokenSource> open_evaluation_source(const Config& config,
                                                    const std::vector<std::string>& files);

// The validation samples of the config's retrieval task (passkey, niah), all at `depth` if it is given. Null
// if its source is another.
std::unique_ptr<TokenSource> open_needle_task(const Config& config, std::optional<double> depth = {});

}  // namespace goat
