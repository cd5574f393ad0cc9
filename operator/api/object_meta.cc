#include "operator/api/object_meta.h"

#include <algorithm>

namespace rubato::api {

namespace {

std::optional<WallTime> time_of(const json::Value& value) {
  auto time = parse_rfc3339(value.string_view_or(""));
  if (!time.ok()) return std::nullopt;
  return *time;
}

std::map<std::string, std::string> strings_of(const json::Value& value) {
  std::map<std::string, std::string> out;
  for (const auto& [key, item] : value.members()) out[key] = item.string_or("");
  return out;
}

}  // namespace

bool ObjectMeta::has_finalizer(std::string_view finalizer) const {
  return std::find(finalizers.begin(), finalizers.end(), finalizer) != finalizers.end();
}

ObjectMeta decode_meta(const json::Value& object) {
  const json::Value& metadata = object["metadata"];
  ObjectMeta meta;
  meta.name = metadata["name"].string_or("");
  meta.ns = metadata["namespace"].string_or("");
  meta.uid = metadata["uid"].string_or("");
  meta.resource_version = metadata["resourceVersion"].string_or("");
  meta.generation = metadata["generation"].int_or(0);
  meta.labels = strings_of(metadata["labels"]);
  meta.annotations = strings_of(metadata["annotations"]);
  for (const json::Value& item : metadata["finalizers"].items())
    meta.finalizers.push_back(item.string_or(""));
  meta.creation_time = time_of(metadata["creationTimestamp"]);
  meta.deletion_time = time_of(metadata["deletionTimestamp"]);
  return meta;
}

}  // namespace rubato::api
