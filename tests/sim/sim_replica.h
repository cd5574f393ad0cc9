// What simulated workers train: the real ModelReplica with its checkpoint store, token file, exact
// sum and AdamW, on a tiny model whose work takes virtual time, or the real TorchReplica on a tiny
// script; and a device whose instruction set is a parameter. Also an undisturbed run of it, alone,
// to which every worker's state is held.
#pragma once

#include "common/clock.h"
#include "common/executor.h"
#include "common/files.h"
#include "common/json.h"
#include "worker/step/model_replica.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace rubato::sim {

constexpr std::int64_t kSequence = 8;  // tokens of a micro-batch
constexpr const char* kDataPath = "/data/tokens";

// The numbers of a job that its workers and its witness share.
struct JobShape {
  std::string name;
  std::uint32_t micro_batches = 24;
  std::uint64_t steps = 100;
  std::uint64_t checkpoint_every = 20;
  int life = 1;               // how often it was submitted under its name
  bool is_script = false;     // runtime pytorch
  std::uint64_t ends_at = 0;  // the script ends the job after this step; 0: it does not

  std::uint64_t last_step() const { return ends_at == 0 ? steps : std::min(ends_at, steps); }
  std::string folder() const;  // of its checkpoints, which no other life has
};
// spec.training of such a job.
json::Value training_of(const JobShape& shape);
// Makes the token file that all jobs read.
void write_tokens(FileSystem& files);

struct WorkerTimes {
  Duration start = 300ms;  // configuration
  Duration micro = 25ms;   // one micro-batch
};

// What a replica does to time, and who hears of its states.
struct ReplicaHooks {
  std::string isa = "model";  // of the node
  bool has_memory = true;
  std::function<void()> start = {};  // called once, by configure
  std::function<void()> work = {};   // called once a micro-batch
  // The worker has said FINISHED: the script's loop is over.
  std::function<bool()> has_finished = [] { return false; };
  std::function<void(std::uint64_t step, std::uint64_t digest)> holds = {};
};
Result<std::unique_ptr<worker::Replica>> make_sim_replica(const worker::TrainingConfig& config,
                                                          worker::ReplicaOptions options,
                                                          const ReplicaHooks& hooks);

// Digest of all of a replica's state, its step included.
std::uint64_t state_digest(worker::Replica& replica);

// The states of a job that nobody disturbs, in order. Computed as far as is asked for, and once in
// a process for all jobs of one kind whose numbers of micro-batches and steps are equal: the rest
// of a shape changes no state. One thread.
class ReferenceRun {
 public:
  explicit ReferenceRun(const JobShape& shape);
  ~ReferenceRun();
  // Computes all of it now, for the processes that this one will fork.
  static void prepare(const JobShape& shape);
  // True when the run comes through this state, with so many steps committed.
  bool passes(std::uint64_t step, std::uint64_t digest);
  // True when the rounds about this step have this loss and these samples.
  bool decides(std::uint64_t step, std::int64_t loss_q, std::uint64_t sample_digest);
  std::uint64_t after(std::uint64_t step);  // the digest when the step was just committed
  // Rounds that its first steps take: one each, and one more each time a step is done again.
  std::uint64_t rounds(std::uint64_t steps);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// "model", of a fingerprint "2-cpu/model/sim…"; "" of "".
std::string isa_of(const std::string& fingerprint);

// The newest checkpoint of a job on a disk: its step and the digest of its state as it loads on
// nodes of `isa`; "": nobody could write down which (the API server was away), and it is the
// checkpoint's.
struct LastCheckpoint {
  std::uint64_t step = 0;
  std::uint64_t digest = 0;
};
Result<LastCheckpoint> read_last_checkpoint(FileSystem& files, const JobShape& shape,
                                            std::string isa);

}  // namespace rubato::sim
