// UTF-8 that may be broken.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rubato::worker {

// What stands at a place of a text: a code point, or the longest start of one that cannot go on.
struct CodePoint {
  char32_t value = 0xFFFD;
  std::size_t bytes = 1;
  bool is_valid = false;
};
CodePoint code_point_at(std::string_view text, std::size_t at);  // at < text.size()

// Each broken sequence becomes one U+FFFD, as the Unicode Standard recommends (3.9, "U+FFFD
// Substitution of Maximal Subparts") and Python's errors="replace" does.
std::string valid_utf8(std::string_view text);

void append_utf8(char32_t point, std::string& out);

}  // namespace rubato::worker
