// ResourceInfo: what the in-memory API server knows of one served resource (a group, version and
// plural), for storage, discovery and tables. Built-in kinds stand in a table; custom ones are read
// from CustomResourceDefinition objects. Values, immutable once published; any thread.
#pragma once

#include "kube/client.h"

#include <memory>
#include <string>
#include <vector>

namespace rubato::kube {

// A column of a server-side table, from the CRD or built in.
struct PrinterColumn {
  std::string name;
  std::string type;  // string | integer | number | boolean | date
  std::string format;
  std::string description;
  int priority = 0;
  std::string json_path;  // as in the CRD: .spec.replicas
};

struct ScalePaths {             // all empty: no scale subresource
  std::string spec_replicas;    // ".spec.gpus.max"
  std::string status_replicas;  // ".status.gpus"
  std::string label_selector;   // may be empty
};

struct ResourceInfo {
  ResourceType type;
  std::string singular;
  std::string list_kind;
  std::vector<std::string> short_names;
  std::vector<std::string> categories;
  bool has_status = false;           // a status subresource
  bool has_generation = false;       // metadata.generation counts changes of the spec
  bool unconditional_update = true;  // PUT without resourceVersion is accepted
  bool create_on_update = false;     // PUT of a missing object creates it
  bool returns_deleted = false;      // DELETE answers with the object, not with a Status
  bool deletes_collection = true;    // DELETE without a name
  bool custom = false;
  ScalePaths scale;
  json::Value schema;  // openAPIV3Schema of a custom type, null otherwise
  std::vector<PrinterColumn> columns;
  // Where objects live: several versions (or groups, for events) share one store.
  std::string storage_id;  // "widgets.example.dev"
};

using InfoPtr = std::shared_ptr<const ResourceInfo>;

const std::vector<ResourceInfo>& builtin_resources();

// The served versions of a CRD object; errors name what is missing.
Result<std::vector<ResourceInfo>> resources_of_crd(const json::Value& crd);

}  // namespace rubato::kube
