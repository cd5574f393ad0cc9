// ObjectMeta: what we read of Kubernetes metadata. Read only: metadata is changed by patches that
// name the one label or finalizer they mean.
#pragma once

#include "common/clock.h"
#include "common/json.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace rubato::api {

struct ObjectMeta {
  std::string name;
  std::string ns;
  std::string uid;
  std::string resource_version;
  std::int64_t generation = 0;
  std::map<std::string, std::string> labels;
  std::map<std::string, std::string> annotations;
  std::vector<std::string> finalizers;
  std::optional<WallTime> creation_time;
  std::optional<WallTime> deletion_time;  // set: somebody wants it gone

  bool is_deleting() const { return deletion_time.has_value(); }
  bool has_finalizer(std::string_view finalizer) const;
};

// Missing members stay empty; never fails.
ObjectMeta decode_meta(const json::Value& object);

}  // namespace rubato::api
