// What a person's program is started with: its own command, or what torchrun would start for it,
// and the environment that torchrun and jax.distributed give (torchrun: PyTorch 2.15,
// torch/distributed/elastic/agent/server/local_elastic_agent.py and torch/distributed/run.py).
// Pure. Private to this folder: includes the generated wire messages.
#pragma once

#include "common/result.h"
#include "worker/protocol/wire.pb.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace rubato::worker {

// The program of one rank. `torchrun [options] train.py …` and `python -m torch.distributed.run …`
// become `python -u train.py …`: what their options say of nodes and rendezvous is ours to say.
// kInvalid: nothing is left to start, an option of torchrun that is not known, or torchrun in the
// text of `sh -c`.
Result<std::vector<std::string>> program_of(const std::vector<std::string>& command);

// A program that a spare interpreter can run (spare.py).
struct PythonCommand {
  std::vector<std::string> interpreter;  // with its flags
  bool is_module = false;                // of -m
  std::vector<std::string> arguments;    // the script or module first
};
// Nothing: no script of Python, or flags that want more thought.
std::optional<PythonCommand> python_of(const std::vector<std::string>& program);

// Of a member of a generation.
struct RankPlace {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::uint32_t local_rank = 0;  // among those of its pod
  std::uint32_t local_world = 1;
  std::uint32_t group = 0;  // its pod among all pods
  std::uint32_t groups = 1;
};
// kNotFound: it is no member.
Result<RankPlace> place_of(const wire::Form& form, const wire::WorkerId& self);

struct LaunchFacts {
  std::string job_uid;
  std::uint64_t restarts = 0;  // generations before this one
  std::uint64_t restarts_most = 0;
  std::string error_file;
  std::string progress_file;
  bool sets_threads = true;  // OMP_NUM_THREADS is not set by the person
};
// By name.
std::map<std::string, std::string> environment_of(const RankPlace& place, const wire::Form& form,
                                                  const LaunchFacts& facts);

// The message of an error file as `torch.distributed.elastic.multiprocessing.errors.record` writes
// it, cut to `most` bytes; "": there is none.
std::string message_of_error_file(const std::string& text, std::size_t most);

}  // namespace rubato::worker
