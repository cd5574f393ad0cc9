// Rules: what must hold between fields, in one table. Each rule is written twice, side by side: as
// CEL for the CRD, and as a C++ predicate for the in-memory API server; one file of bad manifests
// (tests/data/bad_manifests.yaml) holds both to the same field and message. Bounds of single fields
// stand in the schemas. Pure functions.
#pragma once

#include "common/json.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::api {

struct Rule {
  std::string id;
  std::string kind;
  // The object that `self` is: "" (the whole object), "spec.gpus", or with "[]" for each item of a
  // list ("spec.quotas[]"). A rule is skipped where that object is missing.
  std::string scope;
  std::string cel;
  std::string field;        // the field to blame, relative to the scope: ".min"
  std::string message;      // says what is wrong and what would mend it
  bool transition = false;  // uses oldSelf; skipped on create, or where the old object is missing
  std::function<bool(const json::Value& self, const json::Value& old_self)> holds;
};

// All rules, those of immutable fields (made from the schemas) included.
const std::vector<Rule>& rules();

// One cause of a Status of reason Invalid.
struct Violation {
  std::string field;    // "spec.gpus.min"
  std::string message;  // the rule's; a Status puts "Invalid value: " before it
  bool operator==(const Violation&) const = default;
};

// The rules that `now` breaks; `old` is null on create. Like the CEL in the CRD it presumes that
// defaults are filled in and that types are right, and looks at rules alone: schema errors are the
// server's. Another kind's object breaks none.
std::vector<Violation> validate(std::string_view kind, const json::Value& old,
                                const json::Value& now);

}  // namespace rubato::api
