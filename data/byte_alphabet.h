// GPT-2's way to write bytes as printable characters, which its files and tokenizer.json share.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace goat {

// The bytes that `text` (UTF-8) stands for. nullopt if it holds a character that stands for no byte.
//
// A byte that is printable in Latin-1 is written as itself; the other bytes are written as U+0100, U+0101,
// ... in order.
std::optional<std::string> bytes_of_spelling(std::string_view text);

}  // namespace goat
