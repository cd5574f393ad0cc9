// Names of Kubernetes, as RFC 1123 has them. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace rubato {

inline constexpr std::size_t kDnsLabelMost = 63;
inline constexpr std::size_t kDnsSubdomainMost = 253;
inline constexpr const char* kDnsLabelRule =
    "lower-case letters, digits and '-', at most 63, no '-' at an end";
inline constexpr const char* kDnsSubdomainRule =
    "lower-case letters, digits, '-' and '.', at most 253, neither '-' nor '.' at an end or beside "
    "a '.'";

// Of nodes of a local cluster, namespaces, installations.
inline bool is_dns_label(std::string_view text) {
  const auto is_word = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !text.empty() && text.size() <= kDnsLabelMost && is_word(text.front()) &&
         is_word(text.back()) &&
         std::ranges::all_of(text, [&](char c) { return is_word(c) || c == '-'; });
}

// Labels with '.' between them: of most objects.
inline bool is_dns_subdomain(std::string_view text) {
  if (text.size() > kDnsSubdomainMost) return false;
  const std::size_t dot = text.find('.');
  if (dot == std::string_view::npos) return is_dns_label(text);
  return is_dns_label(text.substr(0, dot)) && is_dns_subdomain(text.substr(dot + 1));
}

}  // namespace rubato
