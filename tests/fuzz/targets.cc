#include "tests/fuzz/fuzz.h"

namespace rubato::fuzz {

std::map<std::string, Target>& targets() {
  static std::map<std::string, Target> all;
  return all;
}

bool add_target(const char* name, Target target) { return targets().emplace(name, target).second; }

}  // namespace rubato::fuzz
