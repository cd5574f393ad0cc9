// YAML files of the tests as json::Value. Plain scalars are read as YAML 1.2 core would.
#pragma once

#include "common/json.h"

#include <string>

namespace rubato::api {

Result<json::Value> read_yaml(const std::string& path);

}  // namespace rubato::api
