// This program as its loader sees it.
#pragma once

#include <cstddef>

#include <link.h>

namespace rubato::emulator {

// Where it lies in memory, and where the variables of the calling thread do.
inline dl_phdr_info program_info() {
  dl_phdr_info found = {};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        *static_cast<dl_phdr_info*>(out) = *info;
        return 1;  // the first one is the program
      },
      &found);
  return found;
}

}  // namespace rubato::emulator
