#include "apiserver/front/openapi.h"

#include <set>

namespace rubato::apiserver {
namespace {

using json::Value;
using kube::InfoPtr;

Value gvk(const kube::ResourceInfo& info) {
  return Value::object(
      {{"group", info.type.group}, {"version", info.type.version}, {"kind", info.type.kind}});
}

// "example.dev" + v1 + Widget → dev.example.v1.Widget
std::string schema_name(const kube::ResourceInfo& info) {
  std::string reversed;
  std::string rest = info.type.group.empty() ? "core.api.k8s.io" : info.type.group;
  while (!rest.empty()) {
    const std::size_t dot = rest.rfind('.');
    reversed +=
        (reversed.empty() ? "" : ".") + (dot == std::string::npos ? rest : rest.substr(dot + 1));
    rest = dot == std::string::npos ? "" : rest.substr(0, dot);
  }
  return reversed + "." + info.type.version + "." + info.type.kind;
}

constexpr const char* kMetaName = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

Value described(const char* type, const char* description) {
  return Value::object({{"type", type}, {"description", description}});
}

Value meta_schema() {
  Value strings = Value::object(
      {{"type", "object"}, {"additionalProperties", Value::object({{"type", "string"}})}});
  Value properties = Value::object();
  properties.set("name", described("string", "The name, unique within its namespace."));
  properties.set("namespace", described("string", "The namespace that holds the object."));
  properties.set("generateName",
                 described("string", "A prefix from which the server makes a unique name."));
  properties.set("labels", strings);
  properties.set("annotations", strings);
  properties.set("uid", described("string", "Unique in time and space; set by the server."));
  properties.set("resourceVersion",
                 described("string", "Changes with every write; set by the server."));
  properties.set("generation",
                 described("integer", "Counts changes of the desired state; set by the server."));
  properties.set("creationTimestamp", described("string", "When the object was created."));
  properties.set("deletionTimestamp", described("string", "When deletion was asked for."));
  properties.set("finalizers", Value::object({{"type", "array"},
                                              {"items", Value::object({{"type", "string"}})}}));
  properties.set(
      "ownerReferences",
      Value::object({{"type", "array"}, {"items", Value::object({{"type", "object"}})}}));
  return Value::object({{"type", "object"},
                        {"description", "Metadata that every object has."},
                        {"properties", std::move(properties)}});
}

Value kind_schema(const kube::ResourceInfo& info) {
  Value schema = info.schema.is_object() ? info.schema : Value::object({{"type", "object"}});
  Value properties = Value::object();
  properties.set("apiVersion",
                 described("string", "The group and version of this object's schema."));
  properties.set("kind", described("string", "The kind of this object."));
  properties.set(
      "metadata",
      Value::object(
          {{"description", "Name, namespace, labels and what the server keeps."},
           {"default", Value::object()},
           {"allOf", Value::array({Value::object(
                         {{"$ref", std::string("#/components/schemas/") + kMetaName}})})}}));
  for (const json::Member& member : info.schema["properties"].members())
    if (member.first != "apiVersion" && member.first != "kind" && member.first != "metadata")
      properties.set(member.first, member.second);
  schema.set("properties", std::move(properties));
  schema.set("x-kubernetes-group-version-kind", Value::array({gvk(info)}));
  return schema;
}

Value operation(const kube::ResourceInfo& info, bool patch) {
  Value parameters = Value::array();
  if (patch)
    for (const char* name : {"dryRun", "fieldManager", "fieldValidation", "force"})
      parameters.push_back(Value::object(
          {{"name", name},
           {"in", "query"},
           {"schema", Value::object({{"type", name == std::string("force") ? "boolean" : "string"},
                                     {"uniqueItems", true}})}}));
  return Value::object({{"parameters", std::move(parameters)},
                        {"responses", Value::object()},
                        {"x-kubernetes-group-version-kind", gvk(info)}});
}

std::string base_path(const std::string& group, const std::string& version) {
  return group.empty() ? "api/" + version : "apis/" + group + "/" + version;
}

}  // namespace

Value openapi_root(const std::vector<InfoPtr>& all, const std::string& hash) {
  Value paths = Value::object();
  for (const InfoPtr& info : all) {
    const std::string path = base_path(info->type.group, info->type.version);
    paths.set(path,
              Value::object({{"serverRelativeURL", "/openapi/v3/" + path + "?hash=" + hash}}));
  }
  return Value::object({{"paths", std::move(paths)}});
}

Value openapi_document(const std::vector<InfoPtr>& all, const std::string& group,
                       const std::string& version) {
  Value paths = Value::object();
  Value schemas = Value::object();
  for (const InfoPtr& info : all) {
    if (info->type.group != group || info->type.version != version) continue;
    const std::string collection = "/" + base_path(group, version) + "/" +
                                   (info->type.namespaced ? "namespaces/{namespace}/" : "") +
                                   info->type.plural;
    paths.set(collection,
              Value::object({{"get", operation(*info, false)}, {"post", operation(*info, true)}}));
    paths.set(collection + "/{name}",
              Value::object({{"get", operation(*info, false)}, {"patch", operation(*info, true)}}));
    schemas.set(schema_name(*info), kind_schema(*info));
  }
  if (schemas.size() == 0) return {};
  schemas.set(kMetaName, meta_schema());
  return Value::object(
      {{"openapi", "3.0.0"},
       {"info", Value::object({{"title", "rubato-apiserver"}, {"version", "v1.36.0"}})},
       {"paths", std::move(paths)},
       {"components", Value::object({{"schemas", std::move(schemas)}})}});
}

}  // namespace rubato::apiserver
