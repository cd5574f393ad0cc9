// The kinds of rubato.dev/v1alpha1 as a CRD describes them: names, columns, subresources, schemas.
// Constant after first use; any thread.
#pragma once

#include "kube/client.h"
#include "operator/api/schema.h"

#include <string>
#include <string_view>
#include <vector>

namespace rubato::api {

// A column of `kubectl get`; `wide` ones only with -o wide.
struct Column {
  std::string name;
  std::string type;  // string | integer | number | date
  std::string json_path;
  std::string doc;
  bool wide = false;
};

struct Kind {
  kube::ResourceType type;
  std::string singular;
  std::string short_name;
  bool in_all = false;  // shown by `kubectl get all`
  std::string doc;
  const ObjectSchema* spec = nullptr;
  const ObjectSchema* status = nullptr;  // null: no status subresource
  std::vector<Column> columns;
  bool has_scale = false;  // gpus.max as replicas
};

const std::vector<Kind>& kinds();
const Kind* find_kind(std::string_view kind);  // by "TrainingJob"; null when it is not ours

}  // namespace rubato::api
