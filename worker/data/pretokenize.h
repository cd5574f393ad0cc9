// How a text is cut into pieces before byte-pair encoding: the regular expressions of GPT-2 and
// Llama 3, as scanners.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>

namespace rubato::worker {

enum class SplitRule {
  kNone,    // the whole text is one piece
  kGpt2,    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kLlama3,  // (?i:'s|…)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
            // \s*[\r\n]+|\s+(?!\S)|\s+
};
// The rule that a regular expression of a tokenizer.json means; nothing for one that is not known.
std::optional<SplitRule> split_rule(std::string_view expression);

// Calls `piece` with each piece of valid UTF-8, in order; all of them together are the text. Needs
// memory of nine bytes a code point.
void pretokenize(SplitRule rule, std::string_view text,
                 const std::function<void(std::string_view)>& piece);

// The same with each number (\p{N}) a piece of its own, and what lies between two of them cut as a
// text: the pre-tokenizer "Digits" with individual_digits.
void pretokenize_digits(SplitRule rule, std::string_view text,
                        const std::function<void(std::string_view)>& piece);

// The longest start of `text`, which may be broken UTF-8, whose pieces, and those of what is left,
// are the text's own whatever follows it: it ends with a word or a line. So it is of
// pretokenize_digits(), where a text has more ends. 0: none is known.
// `searched`: so many bytes gave 0 before, and are not looked at again.
std::size_t whole_pieces(SplitRule rule, std::string_view text, std::size_t searched = 0);

}  // namespace rubato::worker
