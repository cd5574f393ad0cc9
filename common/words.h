// Numbers in sentences that people read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rubato {

// "1 GPU", "3 GPUs", "0 GPUs": for nouns whose plural ends with s.
inline std::string counted(std::int64_t number, std::string_view noun) {
  return std::to_string(number) + " " + std::string(noun) + (number == 1 ? "" : "s");
}

}  // namespace rubato
