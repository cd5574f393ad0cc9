// The text of run.json.
#pragma once

#include "worker/checkpoint/checkpoint.h"

#include <string>

namespace rubato::worker {

std::string dump_run_info(const CheckpointInfo& info);
Result<CheckpointInfo> parse_run_info(const std::string& text);  // kInvalid

}  // namespace rubato::worker
