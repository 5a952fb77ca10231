// MixtureSource: training sequences from several sources, each with its share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/token_source.h"

namespace goat {

struct MixturePart {
  double weight = 0;  // relative to the sum of all weights
  std::unique_ptr<TokenSource> source;
};

// Which source sequence i comes from depends on i alone. A binary tree of two-way splits says it: the sources
// [a, b) are split at m = floor((a + b) / 2). With p = round(2^32 * weight of [a, m) / weight of [a, b)), the
// first i sequences of the split hold
//   n(i) = floor((i p + 2^31) / 2^32)
// of its left half. Sequence i is the left half's sequence n(i) if n(i + 1) > n(i), otherwise the right
// half's sequence i - n(i). So each split has given both halves their share to within one sequence at any
// time, and each source is read in the order that it has by itself.
//
// A mixture has no epoch of its own, so that sequences() is endless. Each source has its own epochs; shares()
// tells how many of them a run makes.
class MixtureSource final : public TokenSource {
 public:
  // Throws std::invalid_argument if there is no part or a weight is not a positive number, or so small beside
  // the others that it has no share of 2^-32; and DataError if the sources' tokenizers differ.
  explicit MixtureSource(std::vector<MixturePart> parts);

  std::string description() const override;
  std::uint64_t sequences() const override { return endless; }
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override;
  void finish_check() const override;
  // Names begin with the number of the source, from 1: "2/train_000000.bin". Not if there is one alone.
  std::vector<ShardRecord> shards() const override;
  // split_scans() gives back those of the sources.
  std::string scan() const override;
  std::string tokenizer() const override;
  std::vector<std::string> notes() const override;
  std::vector<std::string> shares(std::uint64_t sequences) const override;

  // Number of sequences of each source among the first `sequences` of the mixture.
  std::vector<std::uint64_t> counts(std::uint64_t sequences) const;

 private:
  double weight(std::size_t begin, std::size_t end) const;  // sum of the parts [begin, end)
  void split(std::size_t begin, std::size_t end);
  void count(std::size_t begin, std::size_t end, std::uint64_t sequences,
             std::vector<std::uint64_t>& counts) const;
  void check_tokenizers() const;

  std::vector<MixturePart> parts_;
  std::vector<std::uint64_t> left_;  // p of the split at m, by m
};

}  // namespace goat
