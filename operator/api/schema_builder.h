// SchemaBuilder describes a struct field by field:
//
//   const ObjectSchema& GpusSpec::schema() {
//     static const ObjectSchema kSchema = [] {
//       SchemaBuilder<GpusSpec> s("GpusSpec", "How many GPUs the job may hold.");
//       s.field("min", &GpusSpec::min, "Fewest GPUs …").required().at_least(1);
//       return s.build();
//     }();
//     return kSchema;
//   }
//
// The type, its JSON form and its default come from the member itself.
#pragma once

#include "operator/api/schema.h"
#include "operator/api/value_codec.h"

#include <string>
#include <utility>
#include <vector>

namespace rubato::api {

// Options of the field just added; use it in the same expression only.
class FieldOptions {
 public:
  FieldOptions(FieldSchema& field, json::Value initial)
      : field_(field), initial_(std::move(initial)) {}

  FieldOptions& required() {
    field_.required = true;
    return *this;
  }
  FieldOptions& immutable() {
    field_.immutable = true;
    return *this;
  }
  // The API server fills in what a default-constructed struct has; for a described struct that is
  // all of its defaults, because the server tries the rules on the bare default.
  FieldOptions& defaulted() {
    field_.default_value = initial_;
    return *this;
  }
  FieldOptions& at_least(double minimum) {
    field_.type.minimum = minimum;
    return *this;
  }
  FieldOptions& more_than(double minimum) {
    field_.type.minimum = minimum;
    field_.type.exclusive_minimum = true;
    return *this;
  }
  FieldOptions& at_most(double maximum) {
    field_.type.maximum = maximum;
    return *this;
  }
  // Length of a string in characters.
  FieldOptions& length(std::int64_t least, std::int64_t most) {
    if (least > 0) field_.type.min_length = least;
    field_.type.max_length = most;
    return *this;
  }
  // Entries of a list or map.
  FieldOptions& entries(std::int64_t least, std::int64_t most) {
    if (least > 0) field_.type.min_items = least;
    field_.type.max_items = most;
    return *this;
  }
  // Bounds of the entries of a list or map.
  FieldOptions& each_length(std::int64_t least, std::int64_t most) {
    if (least > 0) field_.type.items.front().min_length = least;
    field_.type.items.front().max_length = most;
    return *this;
  }
  FieldOptions& pattern(std::string regex) {
    field_.type.pattern = std::move(regex);
    return *this;
  }
  FieldOptions& choices(std::vector<std::string> words) {
    field_.type.choices = std::move(words);
    return *this;
  }
  FieldOptions& keyed_by(std::vector<std::string> keys) {
    field_.type.list_map_keys = std::move(keys);
    return *this;
  }

 private:
  FieldSchema& field_;
  json::Value initial_;
};

template <class T>
class SchemaBuilder {
 public:
  SchemaBuilder(std::string name, std::string doc) : name_(std::move(name)), doc_(std::move(doc)) {}

  template <class M>
  FieldOptions field(std::string name, M T::* member, std::string doc) {
    FieldSchema& added = fields_.emplace_back();
    added.name = std::move(name);
    added.doc = std::move(doc);
    added.type = ValueCodec<M>::type();
    added.decode = [member](void* object, const json::Value& value, const std::string& path) {
      return ValueCodec<M>::decode(static_cast<T*>(object)->*member, value, path);
    };
    added.encode = [member](const void* object) {
      return ValueCodec<M>::encode(static_cast<const T*>(object)->*member);
    };
    return FieldOptions(added, added.encode(&initial_));
  }

  ObjectSchema build() { return ObjectSchema(name_, doc_, std::move(fields_)); }

 private:
  std::string name_;
  std::string doc_;
  std::vector<FieldSchema> fields_;
  T initial_;
};

}  // namespace rubato::api
