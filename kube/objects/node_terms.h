// NodeTerms: a NodeSelector, as pods, volumes and storage classes carry it. Values.
#pragma once

#include "kube/objects/meta.h"
#include "kube/selector.h"

#include <string>
#include <vector>

namespace rubato::kube {

// A node satisfies a term when its labels and its fields (metadata.name) do; it is admitted by one
// term that it satisfies. A term that is empty, malformed, or asks for a field that is not known
// here is satisfied by no node: never place what we do not understand.
struct NodeTerm {
  Selector labels;
  Selector fields;
  bool operator==(const NodeTerm&) const = default;
};

struct NodeTerms {
  std::vector<NodeTerm> terms;
  bool empty() const { return terms.empty(); }  // no demand: every node is admitted
  bool admits(const StringMap& labels, const std::string& node) const;
  bool operator==(const NodeTerms&) const = default;
};

}  // namespace rubato::kube
