// The words of a command: a program and its arguments.
#pragma once

#include "common/result.h"

#include <string>
#include <string_view>
#include <vector>

namespace rubato {

// From a JSON list of texts. kInvalid: it is none, or empty.
Result<std::vector<std::string>> parse_command(std::string_view text);

// Null-terminated, as exec wants them; they point into `words`.
std::vector<char*> exec_words(std::vector<std::string>& words);

}  // namespace rubato
