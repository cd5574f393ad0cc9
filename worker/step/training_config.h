// spec.training of a job, as the worker reads it (JSON with all defaults filled in).
#pragma once

#include "common/result.h"
#include "worker/backend/device.h"
#include "worker/data/sampler.h"
#include "worker/model/model.h"
#include "worker/model/optimizer.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace rubato::worker {

struct TrainingConfig {
  // False: runtime pytorch, where a script says model, data and optimizer.
  bool has_model = true;
  ModelConfig model;
  std::string init_from;  // folder of safetensors to start from; empty: the seed
  std::string data_path;  // a token file, or a folder with tokens.bin
  SamplerConfig sampler;
  OptimizerConfig optimizer;
  Precision precision = Precision::kF32;
  std::uint64_t seed = 0;
  std::uint64_t stop_steps = 0;
  std::uint64_t evaluate_every = 0;    // steps; 0: never
  std::uint64_t checkpoint_every = 0;  // steps; 0: only at the end and on request
  std::string checkpoint_path;         // empty: no checkpoints, no exports
  int checkpoint_keep = 3;
  std::int64_t checkpoint_give_up_seconds = 1800;  // trying to write the last one
};

// kInvalid names the member.
Result<TrainingConfig> parse_training(std::string_view json);

}  // namespace rubato::worker
