// Codecs between json::Value and the structs of the API.
//
// Decoding: a missing or null member gives the struct's default; members we do not know are ignored
// (they survive in the server because all our writes are patches); a member of another type, or a
// word that is no enumerator, is kInvalid and names its path. Encoding: unset optionals, empty
// strings, lists and maps are left out, unless the field is required; numbers are always written.
// Pure functions; cost is linear in the value.
#pragma once

#include "common/json.h"
#include "common/result.h"
#include "operator/api/schema.h"

#include <string>

namespace rubato::api {

Status decode_into(const ObjectSchema& schema, void* object, const json::Value& value,
                   const std::string& path);
json::Value encode_from(const ObjectSchema& schema, const void* object);

// decode<TrainingJobStatus>(object["status"], "status")
template <class T>
Result<T> decode(const json::Value& value, const std::string& path = "") {
  T object;
  TRY_OK(decode_into(T::schema(), &object, value, path));
  return object;
}

template <class T>
json::Value encode(const T& object) {
  return encode_from(T::schema(), &object);
}

// Equality as a server sees it: 1 and 1.0 are the same number, for it may send back either.
bool is_same(const json::Value& a, const json::Value& b);

// The merge patch (RFC 7386) that turns `before` into `after`; an empty object when they are equal.
// What only `before` has is removed.
json::Value diff(const json::Value& before, const json::Value& after);

}  // namespace rubato::api
