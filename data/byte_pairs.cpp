#include "data/byte_pairs.h"

#include <functional>
#include <limits>
#include <queue>
#include <stdexcept>

namespace goat {

namespace {
std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

// A token of a piece while merges are applied to it.
struct Node {
  std::int32_t id;  // -1: merged into the token before it
  std::size_t previous, next;
};

// A merge of two neighbours.
struct Possible {
  std::int32_t rank;
  std::size_t left;  // node
  std::int32_t left_id, right_id, merged_id;
  bool operator>(const Possible& other) const {
    return rank != other.rank ? rank > other.rank : left > other.left;
  }
};
}  // namespace

void BytePairs::add_token(const std::string& bytes, std::int32_t id) {
  ids_[bytes] = id;
  if (bytes.size() == 1) byte_ids_[static_cast<unsigned char>(bytes.front())] = id;
}

std::int32_t BytePairs::find_token(const std::string& bytes) const {
  const auto found = ids_.find(bytes);
  return found == ids_.end() ? -1 : found->second;
}

void BytePairs::add_merge(std::int32_t left, std::int32_t right, std::int32_t merged, Twice twice) {
  const Merge merge{next_rank_++, merged};
  const auto [found, added] = merges_.try_emplace(pair_key(left, right), merge);
  if (!added && twice == Twice::last) found->second = merge;
}

const BytePairs::Merge* BytePairs::find_merge(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::int32_t BytePairs::byte_token(char byte) const {
  const auto value = static_cast<unsigned char>(byte);
  if (byte_ids_[value] < 0)
    throw std::invalid_argument("the tokenizer has no token for byte " + std::to_string(value) +
                                " of the text");
  return byte_ids_[value];
}

void BytePairs::encode(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (whole_first)
    if (const std::int32_t whole = find_token(std::string(piece)); whole >= 0) {
      ids.push_back(whole);
      return;
    }
  std::vector<Node> nodes(piece.size());
  for (std::size_t i = 0; i < piece.size(); ++i)
    nodes[i] = {byte_token(piece[i]), i == 0 ? none : i - 1, i + 1 == piece.size() ? none : i + 1};

  std::priority_queue<Possible, std::vector<Possible>, std::greater<>> possible;
  const auto consider = [&](std::size_t left) {
    if (left == none || nodes[left].next == none) return;
    const std::int32_t left_id = nodes[left].id, right_id = nodes[nodes[left].next].id;
    if (const Merge* merge = find_merge(left_id, right_id))
      possible.push({merge->rank, left, left_id, right_id, merge->id});
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) consider(i);

  while (!possible.empty()) {
    const Possible merge = possible.top();
    possible.pop();
    Node& left = nodes[merge.left];
    const bool still_there =
        left.id == merge.left_id && left.next != none && nodes[left.next].id == merge.right_id;
    if (!still_there) continue;
    nodes[left.next].id = -1;
    left.id = merge.merged_id;
    left.next = nodes[left.next].next;
    if (left.next != none) nodes[left.next].previous = merge.left;
    consider(left.previous);
    consider(merge.left);
  }
  for (const Node& node : nodes)
    if (node.id >= 0) ids.push_back(node.id);
}

}  // namespace goat
