// Which release this is.
#pragma once

#include <string>
#include <string_view>

namespace rubato {

// As CMakeLists.txt has it: "0.1.0".
std::string_view version();
// What --version prints: "rubato-worker 0.1.0".
std::string version_of(std::string_view program);

}  // namespace rubato
