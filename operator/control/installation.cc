#include "operator/control/installation.h"

#include "operator/api/resources.h"

#include <algorithm>

#include <fmt/core.h>

namespace rubato::control {
namespace {

constexpr std::size_t kNameMost = 63;

// RFC 1123.
bool is_dns_label(const std::string& text) {
  const auto is_word = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !text.empty() && text.size() <= kNameMost && is_word(text.front()) &&
         is_word(text.back()) &&
         std::ranges::all_of(text, [&](char c) { return is_word(c) || c == '-'; });
}

}  // namespace

bool Installation::may_see(const kube::Meta& object, const std::string& recorded) const {
  if (!recorded.empty()) return recorded == name;
  const auto whose = kube::find(object.labels, api::kLabelInstallation);
  return !whose || whose->empty() || *whose == name;
}

bool Installation::owns(const kube::Meta& object) const {
  return kube::find(object.labels, api::kLabelInstallation) == name;
}

Status Installation::check() const {
  constexpr const char* kRule = "lower-case letters, digits and '-', at most 63, no '-' at an end";
  if (!is_dns_label(name))
    return Error(Code::kInvalid, fmt::format("installation \"{}\": {}", name, kRule));
  for (const std::string& ns : namespaces)
    if (!is_dns_label(ns))
      return Error(Code::kInvalid, fmt::format("namespace \"{}\": {}", ns, kRule));
  if (namespaces.size() > kNamespacesMost)
    return Error(Code::kInvalid,
                 fmt::format("{} namespaces: at most {}; without any, all are watched at once",
                             namespaces.size(), kNamespacesMost));
  return ok();
}

}  // namespace rubato::control
