// Which container of a job's template is the worker's.
#pragma once

#include "common/json.h"

#include <cstddef>

namespace rubato::api {

// That of the name "worker", or else the first: its place in containers.
inline std::size_t worker_container(const json::Value& pod_spec) {
  const auto& containers = pod_spec["containers"].items();
  for (std::size_t i = 0; i < containers.size(); ++i)
    if (containers[i]["name"].string_view_or("") == "worker") return i;
  return 0;
}

}  // namespace rubato::api
