// Server-side tables: what `kubectl get` prints. Columns of custom types come from their CRD,
// columns of built-in kinds from columns.cc. Dates are rendered here as ages. Pure functions.
#pragma once

#include "apiserver/front/json_path.h"
#include "apiserver/memory/resource.h"
#include "common/clock.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace rubato::apiserver {

struct Column {
  std::string name;
  std::string type = "string";
  std::string format;
  std::string description;
  int priority = 0;
  std::function<json::Value(const json::Value& object, WallTime now)> cell;
};

// The columns of a kind.
std::vector<Column> columns_of(const kube::ResourceInfo& info);
// Those of built-in kinds; empty when the kind has none of its own.
std::vector<Column> builtin_columns(const kube::ResourceInfo& info);
// Those of an autoscaling/v1 Scale.
std::vector<Column> scale_columns();

class TableMaker {
 public:
  // `include_object`: None, Metadata (the default) or Object.
  TableMaker(std::vector<Column> columns, std::string include_object)
      : columns_(std::move(columns)), include_object_(std::move(include_object)) {}

  // A Table with one row per object. `with_columns` false: columnDefinitions is null, as in later
  // events of a watch.
  json::Value make(const std::vector<json::Value>& objects, const json::Value& list_meta,
                   WallTime now, bool with_columns = true) const;

 private:
  std::vector<Column> columns_;
  std::string include_object_;
};

// "5m" since an RFC 3339 time; "<unknown>" when it is missing, "<invalid>" in the future.
std::string age(const json::Value& timestamp, WallTime now);

}  // namespace rubato::apiserver
