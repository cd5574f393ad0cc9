#include "kube/objects/node_terms.h"

#include <algorithm>

namespace rubato::kube {

bool NodeTerms::admits(const StringMap& labels, const std::string& node) const {
  if (terms.empty()) return true;
  const auto label = [&](std::string_view key) { return find(labels, key); };
  const auto field = [&](std::string_view key) -> std::optional<std::string_view> {
    if (key != "metadata.name") return std::nullopt;
    return node;
  };
  return std::any_of(terms.begin(), terms.end(), [&](const NodeTerm& term) {
    return term.labels.matches(label) && term.fields.matches(field);
  });
}

}  // namespace rubato::kube
