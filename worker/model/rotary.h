// The angles of the rotary position embedding, as Hugging Face computes them.
#pragma once

#include "worker/model/model.h"

#include <cstdint>
#include <vector>

namespace rubato::worker {

// What Kernels::rotate takes: row t has head_size / 2 cosines, then as many sines, of t * f_i with
//   f_i = 1 / theta^(2 i / head_size), scaled as config.rope_scaling says.
// Frequencies and angles are rounded to f32 as they are in training elsewhere: a checkpoint expects
// those, not exact ones. A function of the arguments alone.
std::vector<float> rotary_angles(const ModelConfig& config);

}  // namespace rubato::worker
