#include "worker/data/pretokenize.h"

#include "worker/data/unicode_classes.h"
#include "worker/data/utf8.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace rubato::worker {

namespace {

constexpr std::string_view kGpt2Expression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

enum class Class : std::uint8_t { kLetter, kNumber, kSpace, kOther };

Class class_of(char32_t point) {
  if (point < 0x80) {
    const auto c = static_cast<unsigned char>(point);
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') return Class::kLetter;
    if (c >= '0' && c <= '9') return Class::kNumber;
    return c == ' ' || (c >= '\t' && c <= '\r') ? Class::kSpace : Class::kOther;
  }
  if (is_letter(point)) return Class::kLetter;
  if (is_number(point)) return Class::kNumber;
  return is_space(point) ? Class::kSpace : Class::kOther;
}

class Scanner {
 public:
  Scanner(SplitRule rule, std::string_view text) : is_llama_(rule == SplitRule::kLlama3) {
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint point = code_point_at(text, at);
      points_.push_back(point.value);
      offsets_.push_back(static_cast<std::uint32_t>(at));
      classes_.push_back(class_of(point.value));
      at += point.bytes;
    }
    offsets_.push_back(static_cast<std::uint32_t>(text.size()));
  }
  std::size_t size() const { return points_.size(); }
  std::size_t offset(std::size_t i) const { return offsets_[i]; }

  // Where the piece that begins at i ends: the alternatives in the order of the expression.
  std::size_t end_of_piece(std::size_t i) const {
    if (const std::size_t end = contraction(i); end > i) return end;
    if (const std::size_t end = is_llama_ ? llama_word(i) : gpt2_word(i); end > i) return end;
    if (const std::size_t end = others(i); end > i) return end;
    return spaces(i);
  }

 private:
  bool is(std::size_t i, Class wanted) const { return i < size() && classes_[i] == wanted; }
  bool is_newline(std::size_t i) const {
    return i < size() && (points_[i] == '\r' || points_[i] == '\n');
  }
  std::size_t run(std::size_t i, Class wanted) const {
    while (is(i, wanted)) ++i;
    return i;
  }
  // Llama 3 ignores case; the long s folds to s.
  char32_t lower(std::size_t i) const {
    if (i >= size()) return 0;
    const char32_t point = points_[i];
    if (!is_llama_) return point;
    if (point == 0x17F) return 's';
    return point >= 'A' && point <= 'Z' ? point + 32 : point;
  }
  std::size_t contraction(std::size_t i) const {
    if (points_[i] != '\'') return i;
    const char32_t a = lower(i + 1), b = lower(i + 2);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
    const bool is_two = (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l');
    return is_two ? i + 3 : i;
  }
  std::size_t gpt2_word(std::size_t i) const {
    const std::size_t begin = points_[i] == ' ' ? i + 1 : i;
    for (const Class wanted : {Class::kLetter, Class::kNumber})
      if (is(begin, wanted)) return run(begin, wanted);
    return i;
  }
  std::size_t llama_word(std::size_t i) const {
    if (is(i, Class::kLetter)) return run(i, Class::kLetter);
    if (is(i, Class::kNumber)) return std::min(run(i, Class::kNumber), i + 3);
    return !is_newline(i) && is(i + 1, Class::kLetter) ? run(i + 1, Class::kLetter) : i;
  }
  std::size_t others(std::size_t i) const {
    const std::size_t begin = points_[i] == ' ' ? i + 1 : i;
    if (!is(begin, Class::kOther)) return i;
    std::size_t end = run(begin, Class::kOther);
    while (is_llama_ && is_newline(end)) ++end;
    return end;
  }
  std::size_t spaces(std::size_t i) const {
    const std::size_t end = run(i, Class::kSpace);
    if (is_llama_)
      for (std::size_t last = end; last > i; --last)
        if (is_newline(last - 1)) return last;
    // The last space is left for the word that follows it.
    return end == size() || end == i + 1 ? end : end - 1;
  }

  bool is_llama_;
  std::vector<char32_t> points_;
  std::vector<std::uint32_t> offsets_;
  std::vector<Class> classes_;
};

}  // namespace

std::optional<SplitRule> split_rule(std::string_view expression) {
  if (expression == kGpt2Expression) return SplitRule::kGpt2;
  if (expression == kLlama3Expression) return SplitRule::kLlama3;
  return std::nullopt;
}

void pretokenize(SplitRule rule, std::string_view text,
                 const std::function<void(std::string_view)>& piece) {
  if (text.empty()) return;
  if (rule == SplitRule::kNone) return piece(text);
  const Scanner scanner(rule, text);
  for (std::size_t i = 0; i < scanner.size();) {
    const std::size_t end = scanner.end_of_piece(i);
    piece(text.substr(scanner.offset(i), scanner.offset(end) - scanner.offset(i)));
    i = end;
  }
}

void pretokenize_digits(SplitRule rule, std::string_view text,
                        const std::function<void(std::string_view)>& piece) {
  std::size_t begin = 0;  // of what lies between
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (class_of(point.value) == Class::kNumber) {
      pretokenize(rule, text.substr(begin, at - begin), piece);
      piece(text.substr(at, point.bytes));
      begin = at + point.bytes;
    }
    at += point.bytes;
  }
  pretokenize(rule, text.substr(begin), piece);
}

namespace {

constexpr std::size_t kCodePointMax = 4;  // bytes

// The one that ends before `at`.
CodePoint code_point_before(std::string_view text, std::size_t at) {
  for (std::size_t bytes = 1; bytes <= std::min(at, kCodePointMax); ++bytes) {
    const CodePoint point = code_point_at(text, at - bytes);
    if (point.is_valid) return point.bytes == bytes ? point : CodePoint{};
  }
  return {};
}

// No piece goes on over this place, whatever stands before and behind, and that a text ends here
// changes no piece before it. Proof:
// - Before a space, behind what is none. Pieces have a space behind another code point in runs of
//   spaces alone, and in Llama 3's [\r\n]* behind others, which is left out. What looks further
//   than its piece sees a space here as it sees the end, but for \s+(?!\S); and no run of spaces
//   ends here.
// - In Llama 3 behind \r or \n, before what is no space. A run of spaces has a piece of its own up
//   to its last newline, which is here, be it the end or not; so has [\r\n]* behind others; and no
//   newline begins a piece that goes on with anything else.
bool is_boundary(SplitRule rule, const CodePoint& before, const CodePoint& after) {
  if (!before.is_valid || !after.is_valid) return false;
  const auto is_newline = [](const CodePoint& p) { return p.value == '\r' || p.value == '\n'; };
  const bool is_llama = rule == SplitRule::kLlama3;
  const Class left = class_of(before.value);
  if (class_of(after.value) != Class::kSpace) return is_llama && is_newline(before);
  return left != Class::kSpace && !(is_llama && left == Class::kOther && is_newline(after));
}

}  // namespace

std::size_t whole_pieces(SplitRule rule, std::string_view text, std::size_t searched) {
  if (rule == SplitRule::kNone) return 0;
  // A code point that was cut at the end of what was searched is whole now.
  const std::size_t first = std::max<std::size_t>(searched, kCodePointMax) - kCodePointMax + 1;
  for (std::size_t at = text.size(); at-- > first;)
    if (is_boundary(rule, code_point_before(text, at), code_point_at(text, at))) return at;
  return 0;
}

}  // namespace rubato::worker
