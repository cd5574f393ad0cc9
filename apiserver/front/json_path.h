// The subset of JSONPath that printer columns use: .a.b, ['a.b'], \. in names, [0], [*],
// [?(@.type=="Ready")]. Parsed once, evaluated often. Values; no I/O.
#pragma once

#include "common/json.h"
#include "common/result.h"

#include <string>
#include <string_view>
#include <vector>

namespace rubato::apiserver {

class JsonPath {
 public:
  // kInvalid for anything outside the subset.
  static Result<JsonPath> parse(std::string_view text);
  // Every match, in order; empty when nothing is there.
  std::vector<json::Value> evaluate(const json::Value& root) const;

 private:
  struct Step {
    enum class Kind { kMember, kIndex, kAll, kFilter } kind = Kind::kMember;
    std::string name;               // kMember
    std::size_t index = 0;          // kIndex
    std::vector<std::string> path;  // kFilter: @.path
    json::Value equals;             // kFilter: == value
    bool negated = false;           // kFilter: !=
  };
  static Result<Step> bracket(std::string_view inside);
  static void step_from(const json::Value& value, const Step& step, std::vector<json::Value>& next);
  std::vector<Step> steps_;
};

}  // namespace rubato::apiserver
