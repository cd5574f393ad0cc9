// The catalogue: every metric that an operator's /metrics may show, in the order of
// docs/metrics.md, which is made from it. A metric that is not here must not be exposed, and
// tests/metrics compares: names in the sources, families of a recorded run, the page.
#pragma once

#include "common/exposition.h"

#include <string_view>
#include <vector>

namespace rubato::control {

struct MetricGroup {
  std::string_view title;
  std::string_view about;  // a sentence or two
  std::vector<MetricInfo> metrics;
};
const std::vector<MetricGroup>& metric_catalog();
// The row of that name; CHECKs that there is one.
const MetricInfo& metric(std::string_view name);

}  // namespace rubato::control
