// process_*: what Prometheus' client libraries say of a process, from /proc, and rubato_build_info.
// Read when they are asked for; a few system calls. Thread-safe.
#pragma once

#include "common/exposition.h"

#include <string_view>
#include <vector>

namespace rubato {

const std::vector<MetricInfo>& process_metrics();  // the catalogue
// `program`: "rubato-operator". What cannot be read is left out.
void expose_process(std::string_view program, Exposition& out);

}  // namespace rubato
