#include "data/pattern_translation.h"

#include <array>
#include <cctype>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "data/unicode_additions.h"
#include "data/utf8.h"

namespace goat {

namespace {
constexpr std::string_view white_space =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

std::string written(char32_t code) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  std::string hex;
  for (; code > 0 || hex.empty(); code /= 16) hex.insert(hex.begin(), digits[code % 16]);
  return "\\x{" + hex + "}";
}

bool is_category(std::string_view name) {
  constexpr std::array categories{"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",
                                  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                  "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};
  for (const char* category : categories)
    if (name == category) return true;
  return false;
}

// The inside of a class.
std::string category_members(const std::string& name) {
  std::string members = "\\p{" + name + "}";
  for (const AddedCharacters& added : unicode_additions())
    if (added.category.starts_with(name)) members += written(added.first) + "-" + written(added.last);
  return members;
}

struct Set {
  std::string members;  // the inside of a class
  bool negated = false;
};

class Translator {
 public:
  explicit Translator(const std::string& pattern) : pattern_(pattern) {}

  std::string whole() {
    constexpr std::size_t longest = std::size_t{1} << 16;
    if (pattern_.size() > longest) throw std::invalid_argument("a pattern of more than 64 KiB");
    if (valid_utf8(pattern_) < pattern_.size()) throw refused("no UTF-8");
    const std::string result = alternatives(0);
    if (!at_end()) throw refused("an unmatched )");
    return result;
  }

 private:
  bool at_end() const { return position_ >= pattern_.size(); }
  char next() const { return at_end() ? '\0' : pattern_[position_]; }
  bool follows(std::string_view text) const {
    return std::string_view(pattern_).substr(position_).starts_with(text);
  }
  bool take(std::string_view text) {
    const bool taken = follows(text);
    if (taken) position_ += text.size();
    return taken;
  }
  std::invalid_argument refused(const std::string& what) const {
    return std::invalid_argument("the pattern \"" + pattern_ + "\" holds " + what + " at byte " +
                                 std::to_string(position_) + ", which is not understood here");
  }
  char32_t take_character() {
    const Utf8Character character = character_at(pattern_, position_);
    position_ += character.bytes;
    return character.code;
  }

  std::string alternatives(int depth) {
    constexpr int deepest = 100;
    if (depth > deepest) throw refused("too many groups in groups");
    std::string result;
    while (!at_end() && next() != ')') result += take("|") ? std::string("|") : quantified(item(depth));
    return result;
  }

  // An item that a quantifier can follow.
  std::string item(int depth) {
    switch (next()) {
      case '(': return group(depth);
      case '[': ++position_; return character_class();
      case '\\':
        if (const std::optional<Set> set = escaped_set()) return class_of(*set);
        return written(escaped_character());
      case '.': ++position_; return R"([^\x{A}])";
      case '^':
      case '$': throw refused(std::string("the anchor ") + next());
      case '*':
      case '+':
      case '?':
      case '{': throw refused("a quantifier that follows nothing");
      default: return written(take_character());
    }
  }

  std::string group(int depth) {
    std::string start;
    const bool outer_ignores_case = ignores_case_;
    for (const std::string_view form : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"})
      if (start.empty() && take(form)) start = form;
    if (start.empty()) {
      if (follows("(?") || follows("(*")) throw refused("a special group");
      take("(");
      start = "(?:";
    }
    if (start == "(?i:") ignores_case_ = true;
    const std::string inside = alternatives(depth + 1);
    if (!take(")")) throw refused("an unmatched (");
    ignores_case_ = outer_ignores_case;
    return start + inside + ")";
  }

  std::string quantified(const std::string& what) {
    if (const std::string_view one = "?*+"; !at_end() && one.find(next()) != std::string_view::npos) {
      std::string quantifier(1, pattern_[position_++]);
      if (next() == '?' || next() == '+') quantifier += pattern_[position_++];
      return no_second(what + quantifier);
    }
    if (!take("{")) return what;
    const std::optional<int> least = number();
    std::string interval = "{" + std::to_string(least.value_or(0));
    bool exact = true;
    if (take(",")) {
      exact = false;
      interval += ",";
      if (const std::optional<int> most = number()) interval += std::to_string(*most);
    }
    if (!least || !take("}")) throw refused("a { that begins no {n}, {n,} or {n,m}");
    // Oniguruma reads a + after it as a second quantifier, and a ? after {n} too.
    if (take("+")) return no_second("(?:" + what + interval + "})+");
    if (next() == '?' && exact) throw refused("a ? after {n}");
    if (take("?")) return no_second(what + interval + "}?");
    return no_second(what + interval + "}");
  }
  std::string no_second(const std::string& what) {
    if (const std::string_view more = "?*+{"; !at_end() && more.find(next()) != std::string_view::npos)
      throw refused("a quantifier of a quantifier");
    return what;
  }
  std::optional<int> number() {
    constexpr int most = 1000;
    if (next() < '0' || next() > '9') return std::nullopt;
    int value = 0;
    for (; next() >= '0' && next() <= '9'; ++position_) {
      value = 10 * value + (next() - '0');
      if (value > most) throw refused("a repeat of more than 1000");
    }
    return value;
  }

  // \s \S \d \D \p{..} \P{..}; nullopt if another escape follows.
  std::optional<Set> escaped_set() {
    if (take(R"(\s)")) return Set{std::string(white_space), false};
    if (take(R"(\S)")) return Set{std::string(white_space), true};
    if (take(R"(\d)")) return category("Nd", false);
    if (take(R"(\D)")) return category("Nd", true);
    bool negated = false;
    if (take(R"(\P{)"))
      negated = true;
    else if (!take(R"(\p{)"))
      return std::nullopt;
    if (take("^")) negated = !negated;
    const std::size_t end = pattern_.find('}', position_);
    const std::string name = pattern_.substr(position_, end == std::string::npos ? end : end - position_);
    if (end == std::string::npos || !is_category(name)) throw refused("a property other than L, Lu, N, ...");
    position_ = end + 1;
    return category(name, negated);
  }
  Set category(const std::string& name, bool negated) {
    if (ignores_case_) throw refused("a property within (?i:...)");
    return {category_members(name), negated};
  }
  static std::string class_of(const Set& set) { return (set.negated ? "[^" : "[") + set.members + "]"; }

  char32_t escaped_character() {
    take("\\");
    if (at_end()) throw refused("a lone \\");
    constexpr std::string_view names = "tnvfrae", codes = "\t\n\v\f\r\a\x1B";
    if (const std::size_t known = names.find(next()); known != std::string_view::npos) {
      ++position_;
      return static_cast<char32_t>(codes[known]);
    }
    if (take("x{")) {
      const char32_t code = hexadecimal(1, 8);
      if (!take("}")) throw refused("an \\x{ without its }");
      return code;
    }
    if (take("u")) return hexadecimal(4, 4);
    if (take("x")) {
      const char32_t code = hexadecimal(2, 2);
      if (code >= 0x80) throw refused("an \\x of a byte beyond ASCII");
      return code;
    }
    const char c = next();
    const bool ascii = c >= ' ' && c < 0x7F,
               letter = ascii && std::isalnum(static_cast<unsigned char>(c)) != 0;
    const bool may_be_anchor = !in_class_ && std::string_view("<>`'").find(c) != std::string_view::npos;
    if (!ascii || letter || may_be_anchor)
      throw refused("the escape \\" + (ascii ? std::string(1, c) : std::string()));
    ++position_;
    return static_cast<char32_t>(c);
  }
  char32_t hexadecimal(std::size_t least, std::size_t most) {
    char32_t code = 0;
    std::size_t count = 0;
    for (; count < most && std::isxdigit(static_cast<unsigned char>(next())) != 0; ++count, ++position_)
      code = code * 16 + static_cast<char32_t>(std::stoi(std::string(1, next()), nullptr, 16));
    if (count < least || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      throw refused("a number that is no character");
    return code;
  }

  // After the [. A class with \S, \D or a negated property becomes alternatives of classes.
  std::string character_class() {
    in_class_ = true;
    const bool negated = take("^");
    if (negated && ignores_case_) throw refused("a negated class within (?i:...)");
    if (next() == ']') throw refused("an empty class");
    std::string members, others;
    while (next() != ']') {
      if (at_end()) throw refused("a [ without its ]");
      if (next() == '[' || follows("&&")) throw refused("a class in a class");
      if (const std::optional<Set> set = next() == '\\' ? escaped_set() : std::nullopt) {
        if (next() == '-' && !follows("-]")) throw refused("a range that begins with a set");
        if (set->negated)
          others += "|" + class_of(*set);
        else
          members += set->members;
        continue;
      }
      members += range();
    }
    take("]");
    in_class_ = false;
    if (others.empty()) return (negated ? "[^" : "[") + members + "]";
    const std::string any = members.empty() ? others.substr(1) : "[" + members + "]" + others;
    return negated ? "(?:(?!" + any + R"()[\x{0}-\x{10FFFF}]))" : "(?:" + any + ")";
  }
  // A character, or two with a - between them.
  std::string range() {
    const auto character = [&] { return next() == '\\' ? escaped_character() : take_character(); };
    const char32_t first = character();
    if (next() != '-' || follows("-]")) return written(first);
    take("-");
    if (at_end() || next() == '[' || follows(R"(\s)") || follows(R"(\S)") || follows(R"(\d)") ||
        follows(R"(\D)") || follows(R"(\p)") || follows(R"(\P)"))
      throw refused("a range that ends with a set");
    const char32_t last = character();
    if (last < first) throw refused("a range whose end comes before its start");
    return written(first) + "-" + written(last);
  }

  const std::string& pattern_;
  std::size_t position_ = 0;
  bool ignores_case_ = false, in_class_ = false;
};
}  // namespace

std::string translated_pattern(const std::string& pattern) { return Translator(pattern).whole(); }

std::string pattern_of_text(const std::string& text) {
  std::string pattern;
  for (std::size_t done = 0; done < text.size();) {
    const Utf8Character character = character_at(text, done);
    if (!character.valid) throw std::invalid_argument("the text to cut at is no UTF-8");
    pattern += written(character.code);
    done += character.bytes;
  }
  return pattern;
}

}  // namespace goat
