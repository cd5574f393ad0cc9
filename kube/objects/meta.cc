#include "kube/objects/meta.h"

#include <algorithm>

namespace rubato::kube {

std::optional<std::string_view> find(const StringMap& map, std::string_view key) {
  const auto at = std::lower_bound(map.begin(), map.end(), key, [](const auto& entry, auto wanted) {
    return entry.first < wanted;
  });
  if (at == map.end() || at->first != key) return std::nullopt;
  return at->second;
}

std::int64_t amount_of(const Amounts& amounts, std::string_view resource) {
  const auto at =
      std::lower_bound(amounts.begin(), amounts.end(), resource,
                       [](const Amount& amount, auto wanted) { return amount.resource < wanted; });
  return at != amounts.end() && at->resource == resource ? at->value : 0;
}

bool is_older_version(std::string_view a, std::string_view b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

}  // namespace rubato::kube
