// Registry: which resources are served now; built-in ones always, custom ones while their
// CustomResourceDefinition is installed. Not thread-safe: MemoryServer's mutex guards it.
#pragma once

#include "apiserver/memory/resource.h"

#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace rubato::kube {

class Registry {
 public:
  Registry();

  InfoPtr find(const std::string& group, const std::string& version,
               const std::string& plural) const;
  InfoPtr find(const ResourceType& type) const {
    return find(type.group, type.version, type.plural);
  }
  // Any served version of what is stored under this id; null when nothing is.
  InfoPtr of_storage(const std::string& storage_id) const;
  // In the order of discovery: built-in first, then custom by group.
  std::vector<InfoPtr> all() const;

  // Replaces what this CRD served before.
  void install(const json::Value& crd);
  void uninstall(const std::string& crd_name);

 private:
  using Name = std::tuple<std::string, std::string, std::string>;
  std::map<Name, InfoPtr> infos_;
  std::map<std::string, std::vector<Name>> by_crd_;
  std::vector<InfoPtr> builtins_;
};

}  // namespace rubato::kube
