// What one scalar of YAML is, as kubectl reads it (YAML 1.1 as go-yaml has it): `yes`, `off` and
// `y` are truth values, 0644 and 0o644 are octal, 1_000 is a thousand, a date is text. kubectl
// sends what it read as JSON, where 5.0 is written 5: a whole number is an integer, however it was
// written. tests/data/yaml_scalars.txt has the cases; kubectl is asked for each of them by a test.
#pragma once

#include "common/json.h"
#include "common/result.h"

#include <string>
#include <string_view>

namespace rubato::yaml {

// `tag` is yaml-cpp's: "?" for a plain scalar, "!" for a quoted one, or the tag that stands there,
// in full. An error says what is wrong, without the line.
Result<json::Value> scalar_value(std::string_view tag, const std::string& text);
// The name that a scalar is as a key: "true" for `on`, "8" for 010.
Result<std::string> scalar_key(std::string_view tag, const std::string& text);

}  // namespace rubato::yaml
