// ApiError: a failure as a Kubernetes API server words it (kind Status). The texts are those of the
// real server, because people and programs read them; the conformance suite compares them.
// Answer<T> holds a T or an ApiError and works with TRY. Values; any thread.
#pragma once

#include "common/json.h"
#include "common/result.h"
#include "kube/client.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace rubato::kube {

// One field that is wrong. `reason` is a cause type of the API ("FieldValueInvalid" …).
struct FieldError {
  std::string field;    // "spec.gpus.min"
  std::string message;  // as in the cause, e.g. "Invalid value: 9: must be at most 8"
  std::string reason = "FieldValueInvalid";
};

namespace field {
FieldError invalid(const std::string& path, const json::Value& value, const std::string& why);
// The same words, told apart by the reason: it keeps CEL rules from being tried.
FieldError type_invalid(const std::string& path, const json::Value& value, const std::string& why);
FieldError required(const std::string& path, const std::string& why = "");
FieldError forbidden(const std::string& path, const std::string& why);
FieldError duplicate(const std::string& path, const json::Value& value);
FieldError not_supported(const std::string& path, const json::Value& value,
                         const std::vector<std::string>& supported);
}  // namespace field

struct ApiError {
  int code = 500;
  std::string reason = "InternalError";
  std::string message;
  json::Value details;       // null or the `details` object
  bool test_failed = false;  // a `test` operation of a JSON patch did not hold

  json::Value to_status() const;  // the Status object of the wire
  Error to_error() const;         // as a kube::Client returns it
};

template <class T>
class [[nodiscard]] Answer {
 public:
  Answer(T value) : state_(std::in_place_index<0>, std::move(value)) {}         // NOLINT
  Answer(ApiError error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT
  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return *checked(); }
  const T& value() const& { return *checked(); }
  T&& value() && { return std::move(*checked()); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return checked(); }
  const T* operator->() const { return checked(); }
  const ApiError& error() const {
    CHECK(!ok());
    return *std::get_if<1>(&state_);
  }

 private:
  T* checked() {
    CHECK(ok());
    return std::get_if<0>(&state_);
  }
  const T* checked() const {
    CHECK(ok());
    return std::get_if<0>(&state_);
  }
  std::variant<T, ApiError> state_;
};

// Nothing to say beyond success.
struct Done {};

namespace api_error {
// `resource` is "widgets.example.dev", or "pods" in the core group.
std::string qualified(const std::string& plural, const std::string& group);

ApiError not_found(const ResourceType& type, const std::string& name);
ApiError no_such_resource();  // the plain 404 of an unknown path
ApiError already_exists(const ResourceType& type, const std::string& name);
ApiError conflict(const ResourceType& type, const std::string& name, const std::string& why);
ApiError modified(const ResourceType& type, const std::string& name);  // lost the optimistic lock
ApiError invalid(const ResourceType& type, const std::string& name,
                 const std::vector<FieldError>& errors);
ApiError forbidden(const ResourceType& type, const std::string& name, const std::string& why);
ApiError bad_request(const std::string& message);
// A body that is not of its kind; `why` in the decoder's words.
ApiError undecodable(const ResourceType& type, const std::string& why);
ApiError unsupported_media_type(const std::vector<std::string>& accepted);
ApiError method_not_allowed(const std::string& message);
ApiError expired(const std::string& message);
ApiError too_large_version(std::uint64_t wanted, std::uint64_t current);
ApiError internal(const std::string& message);
ApiError json_patch_failed(bool test_failed, const std::string& why);
}  // namespace api_error

}  // namespace rubato::kube
