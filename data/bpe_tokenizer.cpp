#include "data/bpe_tokenizer.h"

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "data/nfc.h"
#include "data/utf8.h"

namespace goat {

namespace {
// Cuts `text` at the tokens that are spelled out in it: the leftmost first, of those the longest. A special
// one is passed over. `tokens` has the longest first.
template <class Text>
void at_added_tokens(const std::vector<AddedToken>& tokens, std::string_view text,
                     std::vector<std::int32_t>& ids, const Text& plain) {
  std::size_t start = 0;
  const auto flush = [&](std::size_t end) {
    if (end > start) plain(text.substr(start, end - start));
  };
  for (std::size_t i = 0; !tokens.empty() && i < text.size();) {
    const auto found = std::ranges::find_if(
        tokens, [&](const AddedToken& token) { return text.substr(i).starts_with(token.text); });
    if (found == tokens.end()) {
      ++i;
      continue;
    }
    if (!found->special) {
      flush(i);
      ids.push_back(found->id);
      start = i + found->text.size();
    }
    i += found->text.size();
  }
  flush(text.size());
}
}  // namespace

BpeTokenizer::BpeTokenizer(BpeParts parts) : parts_(std::move(parts)) {
  std::ranges::stable_sort(parts_.added, std::greater<>{},
                           [](const AddedToken& token) { return token.text.size(); });
  for (AddedToken token : parts_.added) {
    if (token.normalized && parts_.nfc) token.text = to_nfc(token.text);
    (token.normalized ? after_nfc_ : before_nfc_).push_back(token);
  }
  // Special tokens are looked for only to be passed over.
  for (std::vector<AddedToken>* list : {&before_nfc_, &after_nfc_})
    if (std::ranges::all_of(*list, &AddedToken::special)) list->clear();
}

std::vector<std::int32_t> BpeTokenizer::encode(const std::string& text) const {
  if (const std::size_t valid = valid_utf8(text); valid < text.size())
    throw std::invalid_argument("the text is no UTF-8 at byte " + std::to_string(valid));
  Ids ids;
  at_added_tokens(before_nfc_, text, ids, [&](std::string_view part) { encode_plain(part, ids); });
  return ids;
}

void BpeTokenizer::encode_plain(std::string_view text, Ids& ids) const {
  const std::string composed = parts_.nfc ? to_nfc(text) : std::string(text);
  at_added_tokens(after_nfc_, composed, ids, [&](std::string_view part) { encode_piece(part, 0, ids); });
}

void BpeTokenizer::encode_piece(std::string_view piece, std::size_t step, Ids& ids) const {
  if (step == parts_.steps.size()) {
    parts_.pairs.encode(piece, ids);
    return;
  }
  const CutStep& cut = parts_.steps[step];
  std::string prefixed;
  if (cut.prefix_space && !piece.starts_with(' ')) {
    prefixed = " " + std::string(piece);
    piece = prefixed;
  }
  if (!cut.pattern) {
    encode_piece(piece, step + 1, ids);
    return;
  }
  cut.pattern->cut(piece, [&](std::string_view part, bool matched) {
    if (matched || cut.keeps_gaps) encode_piece(part, step + 1, ids);
  });
}

}  // namespace goat
