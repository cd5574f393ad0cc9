// All replicated state of a training job: what a newcomer is sent, what a checkpoint holds, and
// what a committed step changes. Equal on every worker between steps, bit for bit.
#pragma once

#include "worker/backend/device.h"
#include "worker/model/parameter_table.h"

#include <cstdint>
#include <vector>

namespace rubato::worker {

// A named range of the state. The order of sections() is fixed.
struct StateSection {
  const char* name;
  Buffer buffer;
};

class TrainingState {
 public:
  // Zeroed. kExhausted: no memory.
  static Result<TrainingState> create(Device& device, const ParameterTable& table);

  Buffer parameters() const { return parameters_; }
  Buffer exp_avg() const { return exp_avg_; }
  Buffer exp_avg_sq() const { return exp_avg_sq_; }
  Buffer exponents() const { return exponents_; }  // i32, one per block
  // Committed steps, which is also the number of the next step to run.
  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }

  std::vector<StateSection> sections() const;

  // Digest of the parameters alone (the "weight hash"), and of all sections and the step. Both wait
  // for the stream and read every byte.
  Result<std::uint64_t> weight_digest(Device& device, Stream& stream) const;
  Result<std::uint64_t> digest(Device& device, Stream& stream) const;

 private:
  Arena arena_;
  Buffer parameters_;
  Buffer exp_avg_;
  Buffer exp_avg_sq_;
  Buffer exponents_;
  std::int64_t step_ = 0;
};

}  // namespace rubato::worker
