#include "apiserver/front/session.h"
#include "apiserver/front/table.h"

namespace rubato::apiserver {
namespace {

using json::Value;

const char* type_name(kube::EventType type) {
  switch (type) {
    case kube::EventType::kAdded:
      return "ADDED";
    case kube::EventType::kModified:
      return "MODIFIED";
    case kube::EventType::kDeleted:
      return "DELETED";
    case kube::EventType::kBookmark:
      return "BOOKMARK";
  }
  return "ERROR";
}

std::string wrapped(const char* type, const Value& object) {
  return std::string("{\"type\":\"") + type + "\",\"object\":" + json::dump(object) + "}\n";
}

}  // namespace

struct WatchLines::Table {
  TableMaker maker;
};

WatchLines::WatchLines(const WatchReply& reply, const Clock& clock) : reply_(reply), clock_(clock) {
  if (reply.as_table)
    table_ =
        std::make_shared<Table>(Table{TableMaker(columns_of(*reply.info), reply.include_object)});
}

std::string WatchLines::line(const kube::WatchItem& item) {
  const char* type = type_name(item.type);
  if (item.type == kube::EventType::kBookmark && table_ == nullptr) {
    return wrapped(type, item.object);
  }
  if (table_ != nullptr) {
    const Value meta =
        Value::object({{"resourceVersion", item.object["metadata"]["resourceVersion"]}});
    const Value table = table_->maker.make({item.object}, meta, clock_.wall(), first_);
    first_ = false;
    return wrapped(type, table);
  }
  if (reply_.metadata_only)
    return wrapped(type, Value::object({{"kind", "PartialObjectMetadata"},
                                        {"apiVersion", "meta.k8s.io/v1"},
                                        {"metadata", item.object["metadata"]}}));
  return wrapped(type, item.object);
}

std::string WatchLines::error_line(const kube::ApiError& error) {
  return wrapped("ERROR", error.to_status());
}

}  // namespace rubato::apiserver
