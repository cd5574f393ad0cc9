// The text of run.json: what the checkpoint holds, the digests of its other files, and its own.
#pragma once

#include "worker/checkpoint/checkpoint.h"

#include <cstdint>
#include <map>
#include <string>

namespace rubato::worker {

std::string dump_run_info(const CheckpointInfo& info,
                          const std::map<std::string, std::uint64_t>& files);
Result<CheckpointInfo> parse_run_info(const std::string& text);  // kInvalid

}  // namespace rubato::worker
