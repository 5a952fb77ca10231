// The data sources a config asks for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/token_source.h"
#include "train/config/config.h"

namespace goat {

// Throws DataError where the data cannot be used.
std::unique_ptr<TokenSource> open_training_source(const Config& config);
std::unique_ptr<TokenSource> open_validation_source(const Config& config);  // null where the config has none

// The tokenizer that a vocabulary of this size is most likely of: "bytes", "gpt2", or empty where it is
// neither's.
std::string assumed_tokenizer(const Config& config);

// Which tokenizer made the tokens of shards, and how that is known, for people.
std::string tokenizer_text(const Config& config, const TokenSource& data);

// To evaluate a trained model on, whatever the config's section [eval]: the shards of `files` if there are
// any, in this order, else the validation data; null where the config has none.
std::unique_ptr<TokenSource> open_evaluation_source(const Config& config,
                                                    const std::vector<std::string>& files);

}  // namespace goat
