// Classes of code points, as the regular expressions of tokenizers have them: \p{L}, \p{N} and \s.
// The tables are written by scripts/unicode-classes.
#pragma once

namespace rubato::worker {

bool is_letter(char32_t point);
bool is_number(char32_t point);
bool is_space(char32_t point);

}  // namespace rubato::worker
