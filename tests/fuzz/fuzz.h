// Fuzz targets: FUZZ_TARGET(name) { … } in a file of its own gets `input`, any bytes at all. A
// target fails by a broken CHECK, a sanitizer's word, or by taking too long or too much memory. All
// targets are in one program, fuzz_targets; FUZZ_TARGET in the environment says which one runs.
#pragma once

#include "common/check.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

namespace rubato::fuzz {

using Target = void (*)(std::string_view input);
bool add_target(const char* name, Target target);
std::map<std::string, Target>& targets();  // by name

// Takes from the front what a target wants to choose by; zeros when nothing is left.
class Choices {
 public:
  explicit Choices(std::string_view input) : left_(input) {}
  bool empty() const { return left_.empty(); }
  unsigned byte() {
    if (left_.empty()) return 0;
    const auto taken = static_cast<unsigned char>(left_.front());
    left_.remove_prefix(1);
    return taken;
  }
  // Up to 255 bytes, as the next byte says.
  std::string_view bytes() {
    const unsigned size = byte();
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() const { return left_; }

 private:
  std::string_view left_;
};

}  // namespace rubato::fuzz

#define FUZZ_TARGET(name)                                                                         \
  static void fuzz_##name(std::string_view input);                                                \
  [[maybe_unused]] static const bool added_##name = rubato::fuzz::add_target(#name, fuzz_##name); \
  static void fuzz_##name([[maybe_unused]] std::string_view input)
