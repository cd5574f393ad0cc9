// Sandbox: runs one container's command as PID 1 of its own user, mount and PID namespaces, with
// volumes at their mount paths over a read-only view of this machine's files. /proc, /dev and /tmp
// are its own: of this machine's devices it has null, zero, full, random, urandom, tty, and those
// that come as mounts. No mount path, subPath or link in a volume leads to a file of this machine.
//
// It works through a second life of this program (`rubato-localnode --sandbox SPEC`), which is
// single threaded and so may unshare and fork freely: it makes the namespaces, forks PID 1,
// forwards SIGTERM to it, and ends as PID 1 ended (128 + signal when killed). When localnode dies,
// the kernel kills the sandbox, and with it everything in its PID namespace: that is a power cut.
#pragma once

#include "common/json.h"
#include "common/result.h"

#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

namespace rubato::localnode {

struct Mount {
  std::string source;  // a folder, file or device of this machine
  std::string target;  // absolute path inside
  bool read_only = false;
  std::string sub_path = {};  // of the source, the part that is mounted (sub_path.h); "": all
};

struct SandboxSpec {
  std::vector<std::string> command;  // command[0] is looked up in `path` when it has no slash
  std::string path;                  // PATH inside
  std::map<std::string, std::string> environment;
  std::vector<Mount> mounts;
  std::string working_folder = "/";
  std::string hostname;
  std::string new_root;  // an empty folder to build the view in
};

// Where a volume with this mountPath is mounted: the path without links of this machine. kInvalid:
// it is not absolute, or on /, on /dev or in /proc.
Result<std::string> mount_target(const std::string& path);

json::Value to_json(const SandboxSpec& spec);
Result<SandboxSpec> sandbox_spec(const json::Value& value);

struct SandboxProcess {
  pid_t pid = -1;
  int output = -1;  // what all its processes write to standard output and error
};
// Starts this program anew with the spec, which it reads from `path` and removes there: values of
// Secrets stand in it. `inherited`: descriptors that
// stay open, under their numbers, in all processes of the sandbox.
Result<SandboxProcess> start_sandbox(const SandboxSpec& spec, const std::string& path,
                                     const std::vector<int>& inherited);

// The body of `--sandbox`. Does not return unless the start failed; then the exit status is 127 and
// stderr says why.
int run_sandbox(const SandboxSpec& spec);

// Can this machine make the namespaces? The error says what is missing.
Status probe_namespaces();

}  // namespace rubato::localnode
