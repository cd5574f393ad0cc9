// An installation: the replicas that share a Lease, and which jobs are theirs. Several may run in
// one cluster; a job belongs to one, which its label rubato.dev/installation names. A job without
// the label belongs to nobody until an operator has put its name there, in the write that also sets
// the finalizer and that fails when another was faster: nothing is done for a job before. Its first
// status says so too (status.installation), and has the last word from then on: people may replace
// a job by a manifest without label and finalizer, and get both back.
#pragma once

#include "common/result.h"
#include "kube/objects/meta.h"

#include <string>
#include <vector>

namespace rubato::control {

constexpr std::size_t kNamespacesMost = 64;  // each costs a watch of jobs and one of claims

struct Installation {
  std::string name = "rubato";
  std::vector<std::string> namespaces;  // whose jobs it sees; empty: all

  // Its own, or nobody's yet. `recorded`: status.installation of a job.
  bool may_see(const kube::Meta& object, const std::string& recorded = "") const;
  bool owns(const kube::Meta& object) const;
  // kInvalid: a name that cannot be a label's value or a namespace, or too many namespaces.
  Status check() const;
};

}  // namespace rubato::control
