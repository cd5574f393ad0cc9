// `rubatoctl local demo`: a private cluster trains a model while nodes come and go, and at the end
// proves that nothing of it shows in the result.
#pragma once

#include "common/executor.h"
#include "common/result.h"

#include <cstdint>
#include <string>

namespace rubato::ctl {

struct DemoOptions {
  std::string runtime = "builtin";  // or pytorch: which example
  std::string manifest;             // instead of the example's; "": none
  std::string python = "python3";   // of runtime pytorch: an interpreter that has PyTorch
  std::string crds;                 // as for `local up`
  std::int64_t steps = 0;           // 0: the manifest's
  bool keep = false;                // leave the state folder behind
};

// Ends with everything stopped, also when interrupted. An error when the runs are not equal.
Status run_demo(Executor& executor, const DemoOptions& options);

}  // namespace rubato::ctl
