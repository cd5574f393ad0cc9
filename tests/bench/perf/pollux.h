// The profiles of Pollux' artifact (OSDI'21): step and sync times by placement and local batch.
#pragma once

#include "common/result.h"
#include "scheduler/perf/fit.h"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace rubato::sched {

constexpr const char* kPolluxApplications[] = {"bert",     "cifar10", "deepspeech2",
                                               "imagenet", "ncf",     "yolov3"};

// By placement: "134", the GPUs of each node, or "6x14", nodes and GPUs.
using PolluxProfile = std::map<std::string, std::vector<StepObservation>>;
Result<PolluxProfile> read_pollux_profile(const std::filesystem::path& folder);

}  // namespace rubato::sched
