// What a job of runtime pytorch needs of this machine: a Python with PyTorch, and the package
// `rubato` of this build or installation.
#pragma once

#include "common/executor.h"
#include "tools/rubatoctl/demo/story.h"

#include <functional>
#include <string>

namespace rubato::ctl {

// Looks `interpreter` up in PATH, lets it import torch, which takes seconds, and leaves what it
// says in `folder`. kNotFound says what is missing, and what to do.
Result<PythonPlace> find_python(Executor& executor, const std::string& interpreter,
                                const std::string& folder,
                                const std::function<bool()>& should_stop);
// The library that heeds fault plans (worker/testing); need not be there.
std::string testing_library();

}  // namespace rubato::ctl
