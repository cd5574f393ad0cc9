// ObjectSchema: what is known of one struct of the API, field by field: JSON name, type, default,
// bounds, documentation. Codecs (codec.h), the CRDs and docs/api.md (crd.h) are all made from it.
// Every described struct has `static const ObjectSchema& schema()`; build one with
// schema_builder.h. Immutable after construction, so any thread may read it.
#pragma once

#include "common/json.h"
#include "common/result.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace rubato::api {

class ObjectSchema;

enum class ValueType {
  kBool,
  kInt32,
  kInt64,
  kDouble,
  kString,
  kTime,         // RFC 3339, seconds
  kIntOrString,  // "auto" or a number
  kObject,       // described by `object`
  kArray,        // of `items`
  kMap,          // string → `items`
  kPodTemplate,  // a PodTemplateSpec, kept as it is, unknown fields and all
};

// The type of a value with its bounds. Absent bounds are not checked.
struct TypeSchema {
  ValueType type = ValueType::kPodTemplate;
  const ObjectSchema* object = nullptr;      // kObject
  std::vector<TypeSchema> items{};           // kArray, kMap: exactly one
  std::vector<std::string> list_map_keys{};  // kArray: x-kubernetes-list-type map
  std::vector<std::string> choices{};        // kString: enum
  std::string pattern{};                     // kString, kIntOrString (for the string form)
  std::optional<std::int64_t> min_length{};  // kString
  std::optional<std::int64_t> max_length{};  // kString
  std::optional<std::int64_t> min_items{};   // kArray; kMap: properties
  std::optional<std::int64_t> max_items{};   // kArray; kMap: properties
  std::optional<double> minimum{};           // numbers
  std::optional<double> maximum{};           // numbers
  bool exclusive_minimum = false;
};

struct FieldSchema {
  std::string name;
  std::string doc;
  TypeSchema type;
  bool required = false;
  // Cannot be changed after creation. Rendered as a CEL transition rule (rules.h).
  bool immutable = false;
  std::optional<json::Value> default_value;  // filled in by the API server
  // `object` points at the struct the schema describes.
  std::function<Status(void* object, const json::Value& value, const std::string& path)> decode;
  // Null when the field is to be left out.
  std::function<json::Value(const void* object)> encode;
};

class ObjectSchema {
 public:
  ObjectSchema(std::string name, std::string doc, std::vector<FieldSchema> fields)
      : name_(std::move(name)), doc_(std::move(doc)), fields_(std::move(fields)) {}
  ObjectSchema(const ObjectSchema&) = delete;
  ObjectSchema& operator=(const ObjectSchema&) = delete;

  const std::string& name() const { return name_; }
  const std::string& doc() const { return doc_; }
  const std::vector<FieldSchema>& fields() const { return fields_; }
  const FieldSchema* find(std::string_view field) const;

 private:
  std::string name_;
  std::string doc_;
  std::vector<FieldSchema> fields_;
};

}  // namespace rubato::api
