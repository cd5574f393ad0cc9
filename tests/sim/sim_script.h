// What stands for a person's PyTorch script in simulated workers of runtime pytorch: the program of
// worker/testing, whose gradients are clipped and now and then so large that a block overflows. Its
// work takes virtual time. Where training.seed is not 0 the script ends the job after that step.
#pragma once

#include "worker/pytorch/torch_program.h"

#include <functional>
#include <memory>

namespace rubato::sim {

// `work` is called once a micro-batch: takes the time that computing it would.
std::unique_ptr<worker::TorchProgram> make_sim_script(std::function<void()> work);

}  // namespace rubato::sim
