#include "scheduler/common_parameters.h"

#include <fmt/format.h>

namespace rubato::sched {
namespace {

constexpr double kMaxLoadMost = 1000;

}  // namespace

Result<bool> set_common_parameter(PolicyConfig& config, const std::string& name, double value) {
  const auto must_be = [&](const char* range) {
    return Error(Code::kInvalid,
                 fmt::format("parameters.{} is {}, but must be {}; change it", name, value, range));
  };
  if (name == "minRelativeGain") {
    if (!(value >= -1 && value <= 1)) return must_be("between -1 and 1");
    config.min_relative_gain = value;
  } else if (name == "preempt") {
    if (value != 0 && value != 1) return must_be("0 or 1");
    config.preempt = value == 1;
  } else if (name == "maxLoad") {
    if (!(value >= 0 && value <= kMaxLoadMost)) return must_be("between 0 and 1000");
    config.max_load = value;
  } else if (name == "queueWeights") {
    if (value != 0 && value != 1) return must_be("0 or 1");
    config.queue_weights = value == 1;
  } else {
    return false;
  }
  return true;
}

}  // namespace rubato::sched
