// Private to json*.cc: what arrays and objects keep their content in. Copies of a Value share a box
// until one of them is written.
#pragma once

#include "common/json.h"

#include <atomic>

namespace rubato::json {

struct Value::ArrayBox {
  Array content;
};

struct Value::ObjectBox {
  Object content;
};

}  // namespace rubato::json
