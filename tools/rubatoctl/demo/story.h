// The manifests of the demo, made from an example's. Pure functions.
#pragma once

#include "common/json.h"

#include <cstdint>
#include <string>
#include <vector>

namespace rubato::ctl {

struct DemoJob {
  std::string name;
  std::string ns;
  std::int64_t steps = 0;
  std::int64_t tokens_per_step = 0;
  std::string data_claim;  // and the file in it
  std::string data_file;
  std::string checkpoint_claim;
  std::string model;  // for people: "gpt2, 4 layers of 192"
};

// The manifests of an example that holds one TrainingJob whose data and checkpoints lie in claims.
class DemoStory {
 public:
  static Result<DemoStory> make(std::vector<json::Value> manifests, std::int64_t steps);
  const DemoJob& job() const { return job_; }
  // As it is; with the program `testing_worker` each worker is that, and looks for faults to play
  // in faults/NODE beside the checkpoints.
  std::vector<json::Value> disturbed(const std::string& testing_worker) const;
  // The same job on one GPU from the start to the end, under another name, its checkpoints in a
  // claim of their own.
  std::vector<json::Value> undisturbed() const;
  DemoJob undisturbed_job() const;

 private:
  std::vector<json::Value> manifests_;
  std::size_t at_ = 0;  // of the job
  DemoJob job_;
};

}  // namespace rubato::ctl
