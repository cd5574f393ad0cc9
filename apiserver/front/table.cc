#include "apiserver/front/table.h"

#include "apiserver/memory/scale.h"

namespace rubato::apiserver {
namespace {

using json::Value;

// A value as kubectl would print it inside a string column.
std::string printed(const Value& value) {
  if (value.is_string()) return value.string_or("");
  return json::dump(value);
}

Value custom_cell(const kube::PrinterColumn& column, const JsonPath& path, const Value& object,
                  WallTime now) {
  const std::vector<Value> found = path.evaluate(object);
  if (found.empty() || found.front().is_null()) return {};
  const Value& first = found.front();
  if (column.type == "integer") return first.is_number() ? first : Value();
  if (column.type == "number") return first.is_number() ? first : Value();
  if (column.type == "boolean") return first.is_bool() ? first : Value();
  if (column.type == "date") return first.is_string() ? Value(age(first, now)) : Value();
  std::string text;
  for (const Value& value : found) text += (text.empty() ? "" : " ") + printed(value);
  return Value(text);
}

Value partial_object(const Value& object) {
  return Value::object({{"kind", "PartialObjectMetadata"},
                        {"apiVersion", "meta.k8s.io/v1"},
                        {"metadata", object["metadata"]}});
}

}  // namespace

std::string age(const Value& timestamp, WallTime now) {
  const auto then = parse_rfc3339(timestamp.string_view_or(""));
  if (!then.ok()) return "<unknown>";
  const auto elapsed = std::chrono::duration_cast<Duration>(now - *then);
  if (elapsed < -2s) return "<invalid>";
  return human_duration(std::max(elapsed, Duration(0)));
}

std::vector<Column> columns_of(const kube::ResourceInfo& info) {
  if (!info.custom) {
    std::vector<Column> own = builtin_columns(info);
    if (!own.empty()) return own;
  }
  std::vector<Column> out;
  out.push_back({"Name", "string", "name", "Name must be unique within a namespace.", 0,
                 [](const Value& object, WallTime) { return object["metadata"]["name"]; }});
  for (const kube::PrinterColumn& column : info.columns) {
    const auto path = JsonPath::parse(column.json_path);
    if (!path.ok()) continue;
    out.push_back({column.name, column.type, column.format, column.description, column.priority,
                   [column, path = *path](const Value& object, WallTime now) {
                     return custom_cell(column, path, object, now);
                   }});
  }
  return out;
}

Value TableMaker::make(const std::vector<Value>& objects, const Value& list_meta, WallTime now,
                       bool with_columns) const {
  Value definitions;
  if (with_columns) {
    definitions = Value::array();
    for (const Column& column : columns_)
      definitions.push_back(Value::object({{"name", column.name},
                                           {"type", column.type},
                                           {"format", column.format},
                                           {"description", column.description},
                                           {"priority", column.priority}}));
  }
  Value rows = Value::array();
  for (const Value& object : objects) {
    Value cells = Value::array();
    for (const Column& column : columns_) cells.push_back(column.cell(object, now));
    Value row = Value::object({{"cells", std::move(cells)}});
    if (include_object_ == "Object")
      row.set("object", object);
    else if (include_object_ != "None")
      row.set("object", partial_object(object));
    rows.push_back(std::move(row));
  }
  return Value::object({{"kind", "Table"},
                        {"apiVersion", "meta.k8s.io/v1"},
                        {"metadata", list_meta},
                        {"columnDefinitions", std::move(definitions)},
                        {"rows", std::move(rows)}});
}

}  // namespace rubato::apiserver
