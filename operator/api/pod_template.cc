#include "operator/api/pod_template.h"

#include "operator/api/value_codec.h"

namespace rubato::api {

namespace {

using json::Value;

Status check_object(const Value& parent, const char* name, const std::string& path) {
  const Value& member = parent[name];
  if (member.is_null() || member.is_object()) return ok();
  return wrong_type(path + "." + name, "an object");
}

Status check_list(const Value& parent, const char* name, const std::string& path) {
  const Value& member = parent[name];
  if (member.is_null() || member.is_array()) return ok();
  return wrong_type(path + "." + name, "a list");
}

Status check_list_of_objects(const Value& parent, const char* name, const std::string& path) {
  TRY_OK(check_list(parent, name, path));
  const Value::Array& items = parent[name].items();
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_object())
      return wrong_type(path + "." + name + "[" + std::to_string(i) + "]", "an object");
  }
  return ok();
}

Status check_container(const Value& container, const std::string& path) {
  for (const char* name : {"env", "volumeMounts", "ports"})
    TRY_OK(check_list(container, name, path));
  for (const char* name : {"resources", "securityContext"})
    TRY_OK(check_object(container, name, path));
  for (const char* name : {"requests", "limits"})
    TRY_OK(check_object(container["resources"], name, path + ".resources"));
  return check_object(container["securityContext"], "capabilities", path + ".securityContext");
}

Status check_containers(const Value& spec, const char* list, const std::string& path) {
  TRY_OK(check_list_of_objects(spec, list, path));
  const Value::Array& containers = spec[list].items();
  for (std::size_t i = 0; i < containers.size(); ++i)
    TRY_OK(check_container(containers[i], path + "." + list + "[" + std::to_string(i) + "]"));
  return ok();
}

Status check_spec(const Value& spec, const std::string& path) {
  TRY_OK(check_object(spec, "securityContext", path));
  TRY_OK(check_list_of_objects(spec, "volumes", path));
  TRY_OK(check_containers(spec, "initContainers", path));
  return check_containers(spec, "containers", path);
}

}  // namespace

Status check_pod_template(const Value& pod_template, const std::string& path) {
  if (!pod_template.is_object()) return wrong_type(path, "an object");
  for (const char* name : {"metadata", "spec"}) TRY_OK(check_object(pod_template, name, path));
  for (const char* name : {"labels", "annotations"})
    TRY_OK(check_object(pod_template["metadata"], name, path + ".metadata"));
  return check_spec(pod_template["spec"], path + ".spec");
}

}  // namespace rubato::api
