#include "operator/control/installation.h"

#include "common/dns_names.h"
#include "operator/api/resources.h"

#include <fmt/core.h>

namespace rubato::control {

bool Installation::may_see(const kube::Meta& object, const std::string& recorded) const {
  if (!recorded.empty()) return recorded == name;
  const auto whose = kube::find(object.labels, api::kLabelInstallation);
  return !whose || whose->empty() || *whose == name;
}

bool Installation::owns(const kube::Meta& object) const {
  return kube::find(object.labels, api::kLabelInstallation) == name;
}

Status Installation::check() const {
  if (!is_dns_label(name))
    return Error(Code::kInvalid, fmt::format("installation \"{}\": {}", name, kDnsLabelRule));
  for (const std::string& ns : namespaces)
    if (!is_dns_label(ns))
      return Error(Code::kInvalid, fmt::format("namespace \"{}\": {}", ns, kDnsLabelRule));
  if (namespaces.size() > kNamespacesMost)
    return Error(Code::kInvalid,
                 fmt::format("{} namespaces: at most {}; without any, all are watched at once",
                             namespaces.size(), kNamespacesMost));
  return ok();
}

}  // namespace rubato::control
