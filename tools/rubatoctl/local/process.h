// Processes that outlive the command that started them. Each leads a session (so a process group)
// of its own; a pid file remembers its pid, when it started and under which boot, so that a
// recycled pid is never mistaken for it. Calls block for microseconds unless they say otherwise.
#pragma once

#include "common/executor.h"
#include "common/result.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace rubato::ctl {

struct ProcessSpec {
  std::vector<std::string> arguments;  // [0] is the program's path
  std::string log;                     // standard output and error are appended here
  std::string pid_file;
  bool ends_with_us = false;  // SIGTERM when the thread that called start_process() ends
};

struct ProcessId {
  int pid = 0;
  std::uint64_t start_ticks = 0;  // /proc/PID/stat, field 22
  std::string boot;               // /proc/sys/kernel/random/boot_id
  bool operator==(const ProcessId&) const = default;
};

// The program is executed when the pid file stands, and not at all when that cannot be written: no
// process is left that nobody knows. kInvalid when it cannot be executed.
Result<ProcessId> start_process(const ProcessSpec& spec);

std::optional<ProcessId> read_pid_file(const std::string& path);
std::string to_text(const ProcessId& id);  // the pid file's one line
std::optional<ProcessId> parse_process_id(const std::string& text);

// Runs, and is the one that we started. A zombie does not run; our own children are reaped.
bool is_running(const ProcessId& id);
// To the process alone, or to its whole group. False when it does not run any more.
bool send_signal(const ProcessId& id, int signal, bool whole_group);
// False when it still runs at the deadline.
bool wait_for_exit(Executor& executor, const ProcessId& id, MonoTime deadline);

// Runs a program to its end: standard output to a file ("": ours), errors to ours. kInvalid when it
// cannot be run or exits with another status than 0; kCancelled when `should_stop` said so, and
// then it was killed.
Status run_program(Executor& executor, const std::vector<std::string>& arguments,
                   const std::string& output, const std::function<bool()>& should_stop);

// From the first call on, SIGINT, SIGTERM and SIGHUP only set a flag.
void catch_interrupts();
bool is_interrupted();

// Of a running process: field 22 of its stat line.
std::optional<std::uint64_t> start_ticks_of(const std::string& stat_line);
// The last lines of a file, for messages.
std::string tail_of(const std::string& path, std::size_t lines);

}  // namespace rubato::ctl
