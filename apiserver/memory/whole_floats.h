// Whole numbers that a client writes as floats (600.0) where a custom type has integers. The real
// server takes and stores them as 600, but a CEL rule cannot read them: it is an error of each rule
// that comes upon one. Here a rule comes upon each field that its text names, also where the real
// server would not get so far (`has(self.a) || self.b < 1`).
#pragma once

#include "apiserver/memory/api_error.h"

#include <string>
#include <vector>

namespace rubato::kube::schema {

struct WholeFloat {
  std::vector<std::string>
      path;  // {"spec", "training", "stop", "steps"}; none has a list on its way
  bool int_or_string = false;
};

// Makes them integers; returns where they were. What `before` shares with the object has none.
std::vector<WholeFloat> take_whole_floats(json::Value& object, const json::Value& before,
                                          const json::Value& schema);

struct UnreadRules {
  std::vector<FieldError> errors;
  std::vector<std::string> messages;  // of these rules
};
// `old_object`: null at a create, where rules of changes are not tried.
UnreadRules unread_rules(const std::vector<WholeFloat>& floats, const json::Value& old_object,
                         const json::Value& schema);

}  // namespace rubato::kube::schema
