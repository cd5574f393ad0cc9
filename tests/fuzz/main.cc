#include "tests/fuzz/fuzz.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace rubato::fuzz {

namespace {
Target chosen() {
  const char* name = std::getenv("FUZZ_TARGET");
  const auto found = targets().find(name == nullptr ? "" : name);
  if (found != targets().end()) return found->second;
  std::fputs("FUZZ_TARGET is one of:", stderr);
  for (const auto& [known, target] : targets()) std::fprintf(stderr, " %s", known.c_str());
  std::fputs("\n", stderr);
  std::_Exit(2);  // std::exit() would leave a file of a "crash" where we are
}
}  // namespace

}  // namespace rubato::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const rubato::fuzz::Target target = rubato::fuzz::chosen();
  target({reinterpret_cast<const char*>(data), size});
  return 0;
}
