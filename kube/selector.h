// Label and field selectors, as Kubernetes writes them:
//   labels: "app=web,tier!=db,env in (a, b),zone notin (c),gpu,!spot,cores>4"
//   fields: "metadata.name=x,spec.nodeName!=,status.phase==Running"
// Parsed once, matched many times. Values: no I/O, no locks.
#pragma once

#include "common/json.h"
#include "common/result.h"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::kube {

enum class SelectorOp { kIn, kNotIn, kExists, kDoesNotExist, kGreater, kLess };

struct Requirement {
  std::string key;
  SelectorOp op = SelectorOp::kExists;
  bool operator==(const Requirement&) const = default;
  std::vector<std::string> values;  // one for "=", "!=", ">", "<"
};

class Selector {
 public:
  Selector() = default;  // matches everything
  static Selector nothing();
  // kInvalid with the words of the fault; "" matches everything.
  static Result<Selector> parse_labels(std::string_view text);
  // Only "=", "==" and "!=", as Kubernetes. Which fields a resource supports is the server's rule:
  // see requirements().
  static Result<Selector> parse_fields(std::string_view text);
  // The LabelSelector object of a spec: {matchLabels, matchExpressions}.
  static Result<Selector> from_object(const json::Value& label_selector);

  bool operator==(const Selector&) const = default;
  bool empty() const { return requirements_.empty(); }
  const std::vector<Requirement>& requirements() const { return requirements_; }

  // `lookup` gives the value of a label, or nothing when it is not set. "!=" and "notin" hold for
  // a label that is not set.
  bool matches(
      const std::function<std::optional<std::string_view>(std::string_view)>& lookup) const;
  // Against metadata.labels of an object.
  bool matches_labels(const json::Value& object) const;
  // Against the fields of an object by dotted path; a field that is missing reads as "".
  bool matches_fields(const json::Value& object) const;

 private:
  std::vector<Requirement> requirements_;
};

}  // namespace rubato::kube
