// What the words of a command start: an interpreter's script or module, a launcher of ranks.
// Private to this folder.
#pragma once

#include "common/result.h"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace rubato::worker {

constexpr std::string_view kTorchrun = "torchrun";
constexpr std::string_view kTorchrunModule = "torch.distributed.run";
constexpr std::string_view kLaunchModule = "torch.distributed.launch";  // its predecessor

std::string_view last_part(std::string_view path);  // behind the last slash
bool is_python(std::string_view word);  // by its whole name: python3.12, not python-entry.sh

// What an interpreter runs.
struct PythonStart {
  bool is_module = false;  // of -m
  std::string name;        // "": a text, or nothing
  std::size_t at = 0;      // index of the first word behind the name
};
PythonStart started_by_python(std::span<const std::string> command);

// The launcher of ranks (torchrun, accelerate launch, mpirun …) that the command starts: its first
// word is one, or that of a simple command of `sh -c`, or the first one behind programs that are
// known to start another (env, uv run, timeout …) and their options. "": none is certain. What
// follows a script or a module of Python is its own, and what a file starts is not looked at.
std::string launcher_in(std::span<const std::string> words);

// Of the program torchrun: what its #! line names, else what lies beside it. kInvalid: neither.
Result<std::string> interpreter_of(const std::string& torchrun);

}  // namespace rubato::worker
