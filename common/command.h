// The words of a command: a program and its arguments, and the numbers among these.
#pragma once

#include "common/result.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace rubato {

// From a JSON list of texts. kInvalid: it is none, or empty.
Result<std::vector<std::string>> parse_command(std::string_view text);

// Null-terminated, as exec wants them; they point into `words`.
std::vector<char*> exec_words(std::vector<std::string>& words);

// For an option of CLI11: what is wrong with a text that is no number from `least` to `most` (nan
// is none); empty: nothing.
std::function<std::string(const std::string&)> number_from(double least, double most);

}  // namespace rubato
