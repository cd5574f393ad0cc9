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
  bool is_pytorch = false;           // its runtime; else builtin
  std::int64_t steps = 0;            // at least
  std::int64_t tokens_per_step = 0;  // of runtime pytorch: samples
  std::string data_claim;            // and the file in it
  std::string data_file;
  std::string script_file;       // in data_claim, too; of runtime pytorch
  std::string checkpoint_claim;  // and the folder in it; "": its root
  std::string checkpoint_folder;
  std::string model;  // for people: "gpt2, 4 layers of 192"
};

// What the pods of runtime pytorch run with.
struct PythonPlace {
  std::string interpreter;
  std::string package;  // PYTHONPATH
  std::string library;  // RUBATO_LIBRARY
};

// The manifests of an example that holds one TrainingJob whose data and checkpoints lie in claims.
// Of runtime pytorch, its worker's command is an interpreter and a script, and its first argument
// the data.
class DemoStory {
 public:
  static Result<DemoStory> make(std::vector<json::Value> manifests, std::int64_t steps);
  const DemoJob& job() const { return job_; }
  void set_python(const PythonPlace& place);
  // How many steps it made: what undisturbed() repeats.
  void set_steps(std::int64_t steps) { job_.steps = steps; }
  // On 2 to 4 GPUs, with an open end: how long pods take to start is the machine's affair, and all
  // is to be seen before it is told to end; with the program (of runtime pytorch: the library)
  // `testing_worker` each worker is that, and looks for faults to play in faults/NODE beside the
  // checkpoints.
  std::vector<json::Value> disturbed(const std::string& testing_worker) const;
  // The same job on one GPU from the start to the end, under another name, its checkpoints in a
  // claim of their own; so is the data that lies beside them.
  std::vector<json::Value> undisturbed() const;
  DemoJob undisturbed_job() const;

 private:
  std::vector<json::Value> manifests_;
  std::size_t at_ = 0;  // of the job
  DemoJob job_;
};

}  // namespace rubato::ctl
