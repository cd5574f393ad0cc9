// Bounds that fields of several kinds share. Those that the worker keeps to, too, are in
// common/training_limits.h.
#pragma once

namespace rubato::api {

constexpr double kMaxGpus = 100000;  // what one plan may hold (DESIGN: a round at 100 000)
// At some 120 bytes a pod, and 40 a worker, what etcd takes of one object: 1.5 MiB.
constexpr int kMaxPods = 8192;
constexpr double kMaxSteps = 1e12;         // keeps step × anything within int64
constexpr double kMaxSeconds = 315360000;  // ten years
constexpr int kMaxPath = 1024;             // bytes

}  // namespace rubato::api
