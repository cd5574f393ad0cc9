// What people and API servers write: JSON, YAML, quantities, selectors.
#include "common/json.h"
#include "common/yaml.h"
#include "kube/quantity.h"
#include "kube/selector.h"
#include "tests/fuzz/fuzz.h"
#include "tools/rubatoctl/manifests.h"

#include <string>

namespace rubato {

FUZZ_TARGET(json) {
  const auto value = json::parse(input);
  if (!value.ok()) return;
  // What was read can be written, and read again as the same.
  const auto again = json::parse(json::dump(*value));
  CHECK(again.ok() && *again == *value);
}

// Two documents, apart by a newline: one changes the other.
FUZZ_TARGET(json_patch) {
  const std::size_t end = input.find('\n');
  if (end == std::string_view::npos) return;
  const auto target = json::parse(input.substr(0, end));
  const auto patch = json::parse(input.substr(end + 1));
  if (!target.ok() || !patch.ok()) return;
  json::Value changed = *target;
  if (!json::json_patch(changed, *patch).ok()) CHECK(changed == *target);  // all or nothing
  json::Value merged = *target;
  json::merge_patch(merged, *patch);
  json::Value twice = merged;
  json::merge_patch(twice, *patch);
  CHECK(twice == merged);
}

FUZZ_TARGET(yaml) {
  const auto documents = yaml::parse_all(input);
  if (documents.ok())
    for (const json::Value& document : *documents) (void)json::dump(document);
  (void)ctl::read_manifests(std::string(input));
}

FUZZ_TARGET(quantity) {
  const auto units = kube::parse_quantity(input);
  const auto milli = kube::parse_quantity_milli(input);
  CHECK_EQ(units.ok(), milli.ok());
  if (units.ok() && *units > 0) CHECK(*milli >= *units - 1);
}

FUZZ_TARGET(selector) {
  const auto labels = kube::Selector::parse_labels(input);
  const auto fields = kube::Selector::parse_fields(input);
  const json::Value object = json::Value::object(
      {{"metadata",
        json::Value::object({{"name", "a"}, {"labels", json::Value::object({{"a", "1"}})}})}});
  if (labels.ok()) (void)labels->matches_labels(object);
  if (fields.ok()) (void)fields->matches_fields(object);
  if (const auto value = json::parse(input); value.ok()) {
    const auto of_object = kube::Selector::from_object(*value);
    if (of_object.ok()) (void)of_object->matches_labels(object);
  }
}

}  // namespace rubato
