// What stands for a person's PyTorch script in simulated workers of runtime pytorch: the program of
// worker/testing, whose gradients are clipped and now and then so large that a block overflows. Its
// work takes virtual time. Where training.seed is not 0 the script ends the job after that step.
// Once its worker has said that the job is done its loop is over, and it refuses all.
#pragma once

#include "worker/pytorch/torch_program.h"

#include <functional>
#include <memory>

namespace rubato::sim {

// `work` is called once a micro-batch: takes the time that computing it would. `has_finished`: its
// worker has said FINISHED.
std::unique_ptr<worker::TorchProgram> make_sim_script(std::function<void()> work,
                                                      std::function<bool()> has_finished);

}  // namespace rubato::sim
