// Texts: numbers with their nouns in sentences that people read, spaces at the ends, texts that are
// too long or not to be printed, words of a shell.
#pragma once

#include "common/utf8.h"

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace rubato {

// The word that goes with so many: agreeing(1, "is", "are") is "is".
constexpr std::string_view agreeing(std::integral auto number, std::string_view one,
                                    std::string_view many) {
  return number == 1 ? one : many;
}

// "1 GPU", "3 GPUs", "0 GPUs", "2 micro-batches": for nouns whose plural is made by s or es.
std::string counted(std::integral auto number, std::string_view noun) {
  const bool hisses =
      noun.ends_with('s') || noun.ends_with('x') || noun.ends_with("ch") || noun.ends_with("sh");
  return std::to_string(number) + " " + std::string(noun) +
         std::string(agreeing(number, "", hisses ? "es" : "s"));
}

// With its verb: "1 GPU is", "3 GPUs are".
std::string counted(std::integral auto number, std::string_view noun, std::string_view one,
                    std::string_view many) {
  return counted(number, noun) + " " + std::string(agreeing(number, one, many));
}

// "1 of 3 GPUs", "0 of 1 GPU".
std::string counted_of(std::integral auto part, std::integral auto whole, std::string_view noun) {
  return std::to_string(part) + " of " + counted(whole, noun);
}

// Without the blanks at its ends.
constexpr std::string_view trimmed(std::string_view text, std::string_view blanks = " ") {
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// A text of more than `most` bytes is cut between two characters and ends with " …", which comes on
// top of them.
inline std::string clipped(std::string_view text, std::size_t most) {
  const std::string_view kept = utf8_prefix(text, most);
  return std::string(kept) + (kept.size() < text.size() ? " …" : "");
}

// On one line: a blank for each control character, and ? for each byte that is no text.
inline std::string readable(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text, i);
    // Up to U+001F, and U+007F to U+009F: for some terminals U+009B begins a command, too.
    const bool is_control = static_cast<unsigned char>(text[i]) < 0x20 || text[i] == 0x7f ||
                            (length == 2 && text[i] == '\xc2' && text[i + 1] < '\xa0');
    if (length == 0 || is_control)
      out += is_control ? ' ' : '?';
    else
      out += text.substr(i, length);
    i += length == 0 ? 1 : length;
  }
  return out;
}

// In a sentence, of what a file says that anybody may have written.
inline std::string excerpt(std::string_view text) { return clipped(readable(text), 80); }

// As a shell takes it for one word: as it is, or in quotes.
inline std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:@%,";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos)
    return std::string(text);
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// "512 B", "1.4 GiB".
inline std::string human_bytes(std::uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  auto value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace rubato
