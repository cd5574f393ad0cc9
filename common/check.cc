#include "common/check.h"

#include <cstdio>
#include <cstdlib>

namespace rubato {

void check_failed(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "CHECK failed at %s:%d: %s\n", file, line, what.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace rubato
