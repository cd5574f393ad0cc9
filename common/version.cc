#include "common/version.h"

namespace rubato {

std::string_view version() { return RUBATO_VERSION; }

std::string version_of(std::string_view program) {
  return std::string(program) + " " + std::string(version());
}

}  // namespace rubato
