// Paths and names: what they must look like, in words where a pattern of the schema would be
// quoted.
#include "operator/api/rule_table.h"

#include <algorithm>

namespace rubato::api {

namespace {

using json::Value;

// An absolute path, or, where the field may be left out, nothing.
Rule absolute(const char* id, const char* scope, const std::string& field, bool is_required,
              const char* message) {
  const std::string self = "self." + field;
  const std::string starts = self + ".startsWith('/')";
  return {id,
          "TrainingJob",
          scope,
          is_required ? starts : "!has(" + self + ") || " + self + " == '' || " + starts,
          "." + field,
          message,
          false,
          [field, is_required](const Value& object, const Value&) {
            const auto path = object[field].string_view_or("/");
            return path.starts_with('/') || (!is_required && path.empty());
          }};
}

// As ^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$
bool is_subdomain(std::string_view name) {
  const auto alphanumeric = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !name.empty() && alphanumeric(name.front()) && alphanumeric(name.back()) &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return alphanumeric(c) || c == '-' || c == '.'; });
}

Rule named(const char* id, const std::string& field, bool is_required, const char* message) {
  const std::string self = "self." + field;
  const std::string matches = self + ".matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')";
  return {id,
          "TrainingJob",
          "spec",
          is_required ? matches : "!has(" + self + ") || " + self + " == '' || " + matches,
          "." + field,
          message,
          false,
          [field, is_required](const Value& object, const Value&) {
            const auto name = object[field].string_view_or("default");
            return is_subdomain(name) || (!is_required && name.empty());
          }};
}

}  // namespace

std::vector<Rule> word_rules() {
  return {
      absolute("data-path", "spec.training.data", "path", true,
               "the path is not absolute; give the file or folder as the worker pod sees it, such "
               "as /data/tokens, on a volume of spec.template"),
      absolute("init-from-path", "spec.training.model", "initFrom", false,
               "the path is not absolute; give the folder as the worker pod sees it, such as "
               "/models/gpt2, on a volume of spec.template"),
      absolute("checkpoint-path", "spec.training.checkpoint", "path", false,
               "the path is not absolute; give the folder as the worker pod sees it, such as "
               "/checkpoints, on a volume of spec.template that all nodes share"),
      named("queue-name", "queue", true,
            "no TrainingQueue can have this name; write lower case letters, digits, '-' and '.', "
            "with a letter or digit at both ends (kubectl get tq)"),
      named("priority-class-name", "priorityClassName", false,
            "no PriorityClass can have this name; write lower case letters, digits, '-' and '.', "
            "with a letter or digit at both ends (kubectl get priorityclasses)"),
  };
}

}  // namespace rubato::api
