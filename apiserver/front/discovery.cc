#include "apiserver/front/discovery.h"

#include "apiserver/memory/scale.h"

#include <algorithm>

namespace rubato::apiserver {
namespace {

using json::Value;
using kube::InfoPtr;

struct Sub {
  std::string name;
  std::string group;
  std::string version;
  std::string kind;
  std::vector<std::string> verbs;
};

std::vector<Sub> subresources(const kube::ResourceInfo& info) {
  std::vector<Sub> out;
  const std::vector<std::string> rw = {"get", "patch", "update"};
  if (info.has_status)
    out.push_back({"status", info.type.group, info.type.version, info.type.kind, rw});
  if (kube::has_scale(info)) out.push_back({"scale", "autoscaling", "v1", "Scale", rw});
  if (info.storage_id == "pods") {
    out.push_back({"binding", "", "v1", "Binding", {"create"}});
    out.push_back({"eviction", "policy", "v1", "Eviction", {"create"}});
    out.push_back({"log", "", "v1", "Pod", {"get"}});
  }
  return out;
}

Value strings(const std::vector<std::string>& list) {
  Value out = Value::array();
  for (const std::string& item : list) out.push_back(item);
  return out;
}

std::vector<std::string> verbs_of(const kube::ResourceInfo& info) {
  std::vector<std::string> verbs = {"create", "delete", "deletecollection", "get",
                                    "list",   "patch",  "update",           "watch"};
  if (!info.deletes_collection) std::erase(verbs, "deletecollection");
  return verbs;
}

Value kind_of(const std::string& group, const std::string& version, const std::string& kind) {
  return Value::object({{"group", group}, {"version", version}, {"kind", kind}});
}

Value aggregated_resource(const kube::ResourceInfo& info) {
  Value out =
      Value::object({{"resource", info.type.plural},
                     {"responseKind", kind_of(info.type.group, info.type.version, info.type.kind)},
                     {"scope", info.type.namespaced ? "Namespaced" : "Cluster"},
                     {"singularResource", info.singular},
                     {"verbs", strings(verbs_of(info))}});
  if (!info.short_names.empty()) out.set("shortNames", strings(info.short_names));
  if (!info.categories.empty()) out.set("categories", strings(info.categories));
  Value subs = Value::array();
  for (const Sub& sub : subresources(info))
    subs.push_back(Value::object({{"subresource", sub.name},
                                  {"responseKind", kind_of(sub.group, sub.version, sub.kind)},
                                  {"verbs", strings(sub.verbs)}}));
  if (subs.size() > 0) out.set("subresources", std::move(subs));
  return out;
}

std::vector<std::string> groups_of(const std::vector<InfoPtr>& all) {
  std::vector<std::string> out;
  for (const InfoPtr& info : all)
    if (!info->type.group.empty() && std::ranges::find(out, info->type.group) == out.end())
      out.push_back(info->type.group);
  return out;
}

std::vector<std::string> versions_of(const std::vector<InfoPtr>& all, const std::string& group) {
  std::vector<std::string> out;
  for (const InfoPtr& info : all)
    if (info->type.group == group && std::ranges::find(out, info->type.version) == out.end())
      out.push_back(info->type.version);
  return out;
}

Value aggregated_group(const std::vector<InfoPtr>& all, const std::string& group) {
  Value versions = Value::array();
  for (const std::string& version : versions_of(all, group)) {
    Value resources = Value::array();
    for (const InfoPtr& info : all)
      if (info->type.group == group && info->type.version == version)
        resources.push_back(aggregated_resource(*info));
    versions.push_back(Value::object(
        {{"version", version}, {"freshness", "Current"}, {"resources", std::move(resources)}}));
  }
  Value meta = Value::object();
  if (!group.empty()) meta.set("name", group);
  return Value::object({{"metadata", std::move(meta)}, {"versions", std::move(versions)}});
}

Value group_entry(const std::vector<InfoPtr>& all, const std::string& name) {
  Value versions = Value::array();
  for (const std::string& version : versions_of(all, name))
    versions.push_back(
        Value::object({{"groupVersion", name + "/" + version}, {"version", version}}));
  const Value preferred = versions[0];
  return Value::object(
      {{"name", name}, {"versions", std::move(versions)}, {"preferredVersion", preferred}});
}

}  // namespace

const char* const kAggregatedType =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

Value aggregated(const std::vector<InfoPtr>& all, bool core) {
  Value items = Value::array();
  if (core)
    items.push_back(aggregated_group(all, ""));
  else
    for (const std::string& group : groups_of(all)) items.push_back(aggregated_group(all, group));
  return Value::object({{"kind", "APIGroupDiscoveryList"},
                        {"apiVersion", "apidiscovery.k8s.io/v2"},
                        {"metadata", Value::object()},
                        {"items", std::move(items)}});
}

Value group_list(const std::vector<InfoPtr>& all) {
  Value groups = Value::array();
  for (const std::string& name : groups_of(all)) groups.push_back(group_entry(all, name));
  return Value::object(
      {{"kind", "APIGroupList"}, {"apiVersion", "v1"}, {"groups", std::move(groups)}});
}

Value group(const std::vector<InfoPtr>& all, const std::string& name) {
  if (versions_of(all, name).empty()) return {};
  Value out = group_entry(all, name);
  out.set("kind", "APIGroup").set("apiVersion", "v1");
  return out;
}

Value resource_list(const std::vector<InfoPtr>& all, const std::string& group,
                    const std::string& version) {
  Value resources = Value::array();
  for (const InfoPtr& info : all) {
    if (info->type.group != group || info->type.version != version) continue;
    Value entry = Value::object({{"name", info->type.plural},
                                 {"singularName", info->singular},
                                 {"namespaced", info->type.namespaced},
                                 {"kind", info->type.kind},
                                 {"verbs", strings(verbs_of(*info))}});
    if (!info->short_names.empty()) entry.set("shortNames", strings(info->short_names));
    if (!info->categories.empty()) entry.set("categories", strings(info->categories));
    resources.push_back(std::move(entry));
    for (const Sub& sub : subresources(*info)) {
      Value sub_entry = Value::object({{"name", info->type.plural + "/" + sub.name},
                                       {"singularName", ""},
                                       {"namespaced", info->type.namespaced},
                                       {"kind", sub.kind},
                                       {"verbs", strings(sub.verbs)}});
      if (sub.group != group) sub_entry.set("group", sub.group).set("version", sub.version);
      resources.push_back(std::move(sub_entry));
    }
  }
  if (resources.size() == 0) return {};
  return Value::object({{"kind", "APIResourceList"},
                        {"apiVersion", "v1"},
                        {"groupVersion", group.empty() ? version : group + "/" + version},
                        {"resources", std::move(resources)}});
}

}  // namespace rubato::apiserver
