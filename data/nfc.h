// Unicode's normal form C, as Hugging Face's tokenizers bring text to it.
#pragma once

#include <string>
#include <string_view>

namespace goat {

// `text` must be UTF-8. Those tokenizers know Unicode 9.0: marks that came later stay where they are, and
// nothing moves across them.
std::string to_nfc(std::string_view text);

}  // namespace goat
