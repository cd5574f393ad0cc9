#include "apiserver/memory/registry.h"

namespace rubato::kube {

Registry::Registry() {
  for (const ResourceInfo& info : builtin_resources()) {
    auto shared = std::make_shared<const ResourceInfo>(info);
    infos_.emplace(Name{info.type.group, info.type.version, info.type.plural}, shared);
    builtins_.push_back(std::move(shared));
  }
}

InfoPtr Registry::find(const std::string& group, const std::string& version,
                       const std::string& plural) const {
  const auto it = infos_.find(Name{group, version, plural});
  return it == infos_.end() ? nullptr : it->second;
}

InfoPtr Registry::of_storage(const std::string& storage_id) const {
  for (const InfoPtr& info : builtins_)
    if (info->storage_id == storage_id) return info;
  const auto crd = by_crd_.find(storage_id);
  if (crd == by_crd_.end() || crd->second.empty()) return nullptr;
  return infos_.at(crd->second.front());
}

std::vector<InfoPtr> Registry::all() const {
  std::vector<InfoPtr> out = builtins_;
  for (const auto& [name, info] : infos_)
    if (info->custom) out.push_back(info);
  return out;
}

void Registry::install(const json::Value& crd) {
  const std::string name = name_of(crd);
  uninstall(name);
  const auto resources = resources_of_crd(crd);
  if (!resources.ok()) return;
  for (const ResourceInfo& info : *resources) {
    const Name key{info.type.group, info.type.version, info.type.plural};
    if (infos_.contains(key)) continue;  // a CRD cannot replace a built-in resource
    infos_.emplace(key, std::make_shared<const ResourceInfo>(info));
    by_crd_[name].push_back(key);
  }
}

void Registry::uninstall(const std::string& crd_name) {
  const auto it = by_crd_.find(crd_name);
  if (it == by_crd_.end()) return;
  for (const Name& key : it->second) infos_.erase(key);
  by_crd_.erase(it);
}

}  // namespace rubato::kube
