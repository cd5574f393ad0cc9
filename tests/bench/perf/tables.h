// The tables of perf_bench. Each reads one folder of measured data and prints one table; an error
// says which file is not as expected.
#pragma once

#include "common/result.h"

#include <filesystem>

namespace rubato::sched {

Status report_pollux(const std::filesystem::path& traces);
Status report_plans(const std::filesystem::path& traces);
Status report_types(const std::filesystem::path& profiles);
Status report_growth(const std::filesystem::path& traces);

}  // namespace rubato::sched
