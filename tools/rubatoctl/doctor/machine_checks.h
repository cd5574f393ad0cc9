// `rubatoctl doctor --machine`: whether this machine can build, run a local cluster and train; no
// cluster is asked.
#pragma once

#include "tools/rubatoctl/doctor/doctor.h"

#include <cstdint>
#include <string>
#include <vector>

namespace rubato::ctl {

struct MachineFacts {
  std::string instructions;                   // the best that workers use; "": less than SSE4.1
  unsigned cores = 0;                         // that this process may use
  std::uint64_t memory = 0;                   // available, bytes
  std::string folder;                         // where local clusters keep their files …
  std::uint64_t room = 0;                     // … and what is free there, bytes
  std::uint64_t open_files = 0;               // that a process may have
  std::vector<std::string> missing_programs;  // beside rubatoctl
  bool is_clock_synchronised = false;
  std::size_t nvidia_cards = 0;  // on the PCI bus
  std::string nvidia_driver;     // its version; "": none
  std::size_t nvidia_gpus = 0;   // that pods may have
  std::string gpu_problem;       // why there is none of these, and what to do
};

MachineFacts look_at_machine();
// What a container may have at most, by the cgroup (v2 or v1) that it sees as its own.
struct ContainerLimits {
  std::uint64_t memory = ~std::uint64_t{0};  // bytes
  std::uint64_t cores = ~std::uint64_t{0};   // whole ones of its CPU time, one at least
};
ContainerLimits container_limits(const std::string& cgroup = "/sys/fs/cgroup");
// Graphics cards and accelerators of NVIDIA's among `devices`, as Linux shows them.
std::size_t nvidia_cards(const std::string& devices = "/sys/bus/pci/devices");
// Pure.
std::vector<Finding> check_machine(const MachineFacts& facts);
// Prints the report. kInvalid: something is wrong.
Status doctor_of_machine();

}  // namespace rubato::ctl
