// Which bytes are text. Pure.
#pragma once

#include <cstddef>
#include <string_view>

namespace rubato {

// Length of the well-formed UTF-8 sequence at text[i] (RFC 3629), 0 when there is none.
inline std::size_t utf8_length(std::string_view text, std::size_t i) {
  const auto byte = [&](std::size_t k) {
    return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u;
  };
  const auto tail = [&](std::size_t k) { return (byte(k) & 0xc0u) == 0x80u; };
  const unsigned a = byte(0);
  const unsigned b = byte(1);
  if (a < 0x80) return 1;
  if (a >= 0xc2 && a <= 0xdf) return tail(1) ? 2 : 0;
  if (a >= 0xe0 && a <= 0xef) {
    if (!tail(1) || !tail(2)) return 0;
    if (a == 0xe0 && b < 0xa0) return 0;  // overlong
    if (a == 0xed && b > 0x9f) return 0;  // a surrogate
    return 3;
  }
  if (a >= 0xf0 && a <= 0xf4) {
    if (!tail(1) || !tail(2) || !tail(3)) return 0;
    if (a == 0xf0 && b < 0x90) return 0;  // overlong
    if (a == 0xf4 && b > 0x8f) return 0;  // beyond U+10FFFF
    return 4;
  }
  return 0;
}

// The longest beginning of a well-formed text that has at most `most` bytes and whole characters.
inline std::string_view utf8_prefix(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0u) == 0x80u) --most;
  return text.substr(0, most);
}

}  // namespace rubato
