#include "kube/objects/decode.h"

#include "common/saturate.h"
#include "kube/quantity.h"

namespace rubato::kube {
namespace {

std::int64_t& slot(Amounts& amounts, std::string_view resource) {
  auto at = std::lower_bound(amounts.begin(), amounts.end(), resource,
                             [](const Amount& a, auto wanted) { return a.resource < wanted; });
  if (at == amounts.end() || at->resource != resource)
    at = amounts.insert(at, Amount{std::string(resource), 0});
  return at->value;
}

}  // namespace

WallTime decode_time(std::string_view text) {
  if (text.empty()) return {};
  const auto time = parse_rfc3339(text);
  return time.ok() ? time.value() : WallTime{};
}

void add_amount(Amounts& amounts, std::string_view resource, std::string_view text) {
  const auto value = resource == "cpu" ? parse_quantity_milli(text) : parse_quantity(text);
  std::int64_t& sum = slot(amounts, resource);
  sum = saturating_add(sum, value.value_or(0));
}

void add_amounts(Amounts& target, const Amounts& other) {
  for (const auto& amount : other) {
    std::int64_t& sum = slot(target, amount.resource);
    sum = saturating_add(sum, amount.value);
  }
}

void raise_amounts(Amounts& target, const Amounts& other) {
  for (const auto& amount : other) {
    auto& value = slot(target, amount.resource);
    value = std::max(value, amount.value);
  }
}

}  // namespace rubato::kube
