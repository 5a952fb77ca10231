#include "data/mixture_source.h"

#include <cmath>
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "data/shard_scan.h"

namespace goat {
namespace {

// n(i), in halves of 32 bits, whose products fit in 64.
std::uint64_t taken_left(std::uint64_t sequences, std::uint64_t p) {
  constexpr std::uint64_t low = 0xFFFF'FFFF, half = 0x8000'0000;
  return (sequences >> 32) * p + (((sequences & low) * p + half) >> 32);
}

std::string text(const char* format, double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, format, value);
  return digits;
}

}  // namespace

MixtureSource::MixtureSource(std::vector<MixturePart> parts)
    : parts_(std::move(parts)), left_(parts_.size()) {
  if (parts_.empty()) throw std::invalid_argument("MixtureSource: no part");
  for (const MixturePart& part : parts_)
    if (!(part.weight > 0) || !std::isfinite(part.weight))
      throw std::invalid_argument("MixtureSource: weight " + std::to_string(part.weight) +
                                  ", must be a positive number");
  check_tokenizers();
  split(0, parts_.size());
}

double MixtureSource::weight(std::size_t begin, std::size_t end) const {
  double sum = 0;
  for (std::size_t k = begin; k < end; ++k) sum += parts_[k].weight;
  return sum;
}

void MixtureSource::split(std::size_t begin, std::size_t end) {
  if (end - begin < 2) return;
  const std::size_t middle = (begin + end) / 2;
  const double p = std::round(0x1p32 * (weight(begin, middle) / weight(begin, end)));
  if (!(p >= 1 && p <= 0x1p32 - 1))
    throw std::invalid_argument("MixtureSource: the weights of parts " + std::to_string(begin) + " and " +
                                std::to_string(middle) + " differ too much");
  left_[middle] = static_cast<std::uint64_t>(p);
  split(begin, middle);
  split(middle, end);
}

void MixtureSource::check_tokenizers() const {
  const auto told = [](const TokenSource& source) {
    return source.tokenizer() +
           (source.tokenizer_sha256().empty() ? "" : ", sha256 " + source.tokenizer_sha256());
  };
  const TokenSource* first = nullptr;
  for (const MixturePart& part : parts_) {
    if (part.source->tokenizer().empty()) continue;
    if (!first) first = part.source.get();
    if (told(*first) != told(*part.source))
      throw DataError("data.mixture: the sources were made with different tokenizers (" +
                      first->description() + ": " + told(*first) + "; " + part.source->description() + ": " +
                      told(*part.source) + "): prepare them with the same one");
  }
}

std::string MixtureSource::description() const {
  return "mixture of " + std::to_string(parts_.size()) + (parts_.size() == 1 ? " source" : " sources");
}

void MixtureSource::read(std::uint64_t index, std::span<std::int32_t> inputs,
                         std::span<std::int32_t> targets) {
  std::size_t begin = 0, end = parts_.size();
  while (end - begin > 1) {
    const std::size_t middle = (begin + end) / 2;
    const std::uint64_t left = taken_left(index, left_[middle]);
    const bool goes_left = taken_left(index + 1, left_[middle]) > left;
    (goes_left ? end : begin) = middle;
    index = goes_left ? left : index - left;
  }
  parts_[begin].source->read(index, inputs, targets);
}

void MixtureSource::finish_check() const {
  for (const MixturePart& part : parts_) part.source->finish_check();
}

std::vector<ShardRecord> MixtureSource::shards() const {
  if (parts_.size() == 1) return parts_.front().source->shards();
  std::vector<ShardRecord> all;
  for (std::size_t k = 0; k < parts_.size(); ++k)
    for (ShardRecord& record : parts_[k].source->shards()) {
      record.name = std::to_string(k + 1) + "/" + record.name;
      all.push_back(std::move(record));
    }
  return all;
}

std::string MixtureSource::scan() const {
  std::vector<std::string> scans;
  for (const MixturePart& part : parts_) scans.push_back(part.source->scan());
  return join_scans(scans);
}

std::string MixtureSource::tokenizer() const {
  for (const MixturePart& part : parts_)
    if (const std::string name = part.source->tokenizer(); !name.empty()) return name;
  return "";
}

std::vector<std::string> MixtureSource::notes() const {
  std::vector<std::string> all;
  for (const MixturePart& part : parts_)
    for (std::string& note : part.source->notes()) all.push_back(std::move(note));
  return all;
}

std::vector<std::uint64_t> MixtureSource::counts(std::uint64_t sequences) const {
  std::vector<std::uint64_t> counts(parts_.size());
  count(0, parts_.size(), sequences, counts);
  return counts;
}

void MixtureSource::count(std::size_t begin, std::size_t end, std::uint64_t sequences,
                          std::vector<std::uint64_t>& counts) const {
  if (end - begin == 1) {
    counts[begin] = sequences;
    return;
  }
  const std::size_t middle = (begin + end) / 2;
  const std::uint64_t left = taken_left(sequences, left_[middle]);
  count(begin, middle, left, counts);
  count(middle, end, sequences - left, counts);
}

std::vector<std::string> MixtureSource::shares(std::uint64_t sequences) const {
  const std::vector<std::uint64_t> taken = counts(sequences);
  std::vector<std::string> lines;
  for (std::size_t k = 0; k < parts_.size(); ++k) {
    const TokenSource& source = *parts_[k].source;
    const double share = parts_[k].weight / weight(0, parts_.size());
    std::string line = text("%.4g", 100 * share) + " %: " + source.description();
    if (source.sequences() != endless)
      line += "; " + text("%.4g", static_cast<double>(taken[k]) / static_cast<double>(source.sequences())) +
              " epochs in this run";
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace goat
