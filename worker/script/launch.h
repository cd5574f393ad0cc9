// What a person's program is started with: its own command, or what torchrun would start for it,
// and the environment that torchrun and jax.distributed give (torchrun: PyTorch 2.15,
// torch/distributed/elastic/agent/server/local_elastic_agent.py and torch/distributed/run.py).
// Private to this folder: includes the generated wire messages.
#pragma once

#include "common/result.h"
#include "worker/protocol/wire.pb.h"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::worker {

// The program of one rank.
struct RankProgram {
  std::vector<std::string> words;
  bool is_of_torchrun = false;        // `${local_rank}` stands for a number in its words
  std::string role = "default";       // torchrun's --role
  std::vector<std::string> left_out;  // its other options, as they are written: nothing heeds them
};
// `torchrun [options] train.py …` and `python -m torch.distributed.run …` become `python -u
// train.py …`: what their options say of nodes and rendezvous is ours to say. torchrun's
// interpreter is that of its #! line, which is read, else the one beside it. kInvalid: nothing is
// left to start, an option of torchrun that is not known, or a command that starts torchrun, or
// another launcher of ranks, by way of something else (launcher.h).
Result<RankProgram> program_of(const std::vector<std::string>& command);
std::vector<std::string> words_of(const RankProgram& program, std::uint32_t local_rank);

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
  std::string role = "default";
  std::uint64_t restarts = 0;  // generations before this one
  std::uint64_t restarts_most = 0;
  std::string error_file;
  std::string progress_file;
  // The person does not: OMP_NUM_THREADS, TORCH_NCCL_ASYNC_ERROR_HANDLING.
  bool sets_threads = true;
  bool sets_nccl_errors = true;
};
// By name.
std::map<std::string, std::string> environment_of(const RankPlace& place, const wire::Form& form,
                                                  const LaunchFacts& facts);

// The message of an error file as `torch.distributed.elastic.multiprocessing.errors.record` writes
// it, on one line and cut to `most` bytes; "": there is none. The file's beginning is enough.
std::string message_of_error_file(std::string_view text, std::size_t most);

}  // namespace rubato::worker
