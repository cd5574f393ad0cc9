// Times to wait, as people name them. Pure functions.
#pragma once

#include "common/result.h"

#include <chrono>
#include <string_view>

namespace rubato::ctl {

// "90" are seconds; "1m30s", "1.5h" and "300ms" are what kubectl takes. Rounded up to whole
// seconds, at most kLongestWait. kInvalid says what would do.
inline constexpr std::chrono::seconds kLongestWait{1'000'000'000};
Result<std::chrono::seconds> parse_wait(std::string_view text);

}  // namespace rubato::ctl
