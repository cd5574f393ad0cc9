#include "apiserver/memory/api_error.h"

#include "kube/errors.h"

namespace rubato::kube {
namespace {

json::Value details_of(const ResourceType& type, const std::string& kind, const std::string& name) {
  json::Value details = json::Value::object();
  if (!name.empty()) details.set("name", name);
  if (!type.group.empty()) details.set("group", type.group);
  details.set("kind", kind);
  return details;
}

}  // namespace

namespace field {

FieldError invalid(const std::string& path, const json::Value& value, const std::string& why) {
  return {path, "Invalid value: " + json::dump(value) + ": " + why, "FieldValueInvalid"};
}

FieldError type_invalid(const std::string& path, const json::Value& value, const std::string& why) {
  FieldError error = invalid(path, value, why);
  error.reason = "FieldValueTypeInvalid";
  return error;
}
FieldError required(const std::string& path, const std::string& why) {
  return {path, why.empty() ? "Required value" : "Required value: " + why, "FieldValueRequired"};
}
FieldError forbidden(const std::string& path, const std::string& why) {
  return {path, "Forbidden: " + why, "FieldValueForbidden"};
}
FieldError duplicate(const std::string& path, const json::Value& value) {
  return {path, "Duplicate value: " + json::dump(value), "FieldValueDuplicate"};
}
FieldError not_supported(const std::string& path, const json::Value& value,
                         const std::vector<std::string>& supported) {
  std::string message = "Unsupported value: " + json::dump(value) + ": supported values: ";
  for (std::size_t i = 0; i < supported.size(); ++i)
    message += (i == 0 ? "\"" : ", \"") + supported[i] + "\"";
  return {path, message, "FieldValueNotSupported"};
}

}  // namespace field

json::Value ApiError::to_status() const {
  json::Value status = json::Value::object({{"kind", "Status"},
                                            {"apiVersion", "v1"},
                                            {"metadata", json::Value::object()},
                                            {"status", "Failure"},
                                            {"message", message}});
  if (!reason.empty()) status.set("reason", reason);
  if (!details.is_null()) status.set("details", details);
  status.set("code", code);
  return status;
}

Error ApiError::to_error() const {
  if (test_failed) return Error(Code::kConflict, message).set_reason("TestFailed");
  return error_from_status(code, to_status());
}

namespace api_error {

std::string qualified(const std::string& plural, const std::string& group) {
  return group.empty() ? plural : plural + "." + group;
}

ApiError not_found(const ResourceType& type, const std::string& name) {
  return {404, "NotFound", qualified(type.plural, type.group) + " \"" + name + "\" not found",
          details_of(type, type.plural, name)};
}

ApiError no_such_resource() {
  return {404, "NotFound", "the server could not find the requested resource",
          json::Value::object()};
}

ApiError already_exists(const ResourceType& type, const std::string& name) {
  return {409, "AlreadyExists",
          qualified(type.plural, type.group) + " \"" + name + "\" already exists",
          details_of(type, type.plural, name)};
}

ApiError conflict(const ResourceType& type, const std::string& name, const std::string& why) {
  return {409, "Conflict",
          "Operation cannot be fulfilled on " + qualified(type.plural, type.group) + " \"" + name +
              "\": " + why,
          details_of(type, type.plural, name)};
}

ApiError modified(const ResourceType& type, const std::string& name) {
  return conflict(type, name,
                  "the object has been modified; please apply your changes to the latest version "
                  "and try again");
}

ApiError invalid(const ResourceType& type, const std::string& name,
                 const std::vector<FieldError>& errors) {
  json::Value causes = json::Value::array();
  std::string list;
  for (const FieldError& e : errors) {
    causes.push_back(
        json::Value::object({{"reason", e.reason}, {"message", e.message}, {"field", e.field}}));
    list += (list.empty() ? "" : ", ") + e.field + ": " + e.message;
  }
  if (errors.size() > 1) list = "[" + list + "]";
  json::Value details = details_of(type, type.kind, name);
  details.set("causes", std::move(causes));
  return {422, "Invalid",
          qualified(type.kind, type.group) + " \"" + name + "\" is invalid: " + list,
          std::move(details)};
}

ApiError forbidden(const ResourceType& type, const std::string& name, const std::string& why) {
  return {403, "Forbidden",
          qualified(type.plural, type.group) + " \"" + name + "\" is forbidden: " + why,
          details_of(type, type.plural, name)};
}

ApiError bad_request(const std::string& message) { return {400, "BadRequest", message, {}}; }

ApiError undecodable(const ResourceType& type, const std::string& why) {
  return bad_request(type.kind + " in version \"" + type.version + "\" cannot be handled as a " +
                     type.kind + ": " + why);
}

ApiError unsupported_media_type(const std::vector<std::string>& accepted) {
  std::string message =
      "the body of the request was in an unknown format - accepted media types include: ";
  for (std::size_t i = 0; i < accepted.size(); ++i) message += (i == 0 ? "" : ", ") + accepted[i];
  return {415, "UnsupportedMediaType", message, {}};
}

ApiError method_not_allowed(const std::string& message) {
  return {405, "MethodNotAllowed", message, json::Value::object()};
}

ApiError expired(const std::string& message) { return {410, "Expired", message, {}}; }

ApiError too_large_version(std::uint64_t wanted, std::uint64_t current) {
  const std::string text = "Too large resource version";
  return {
      504, "Timeout",
      "Timeout: " + text + ": " + std::to_string(wanted) + ", current: " + std::to_string(current),
      json::Value::object(
          {{"causes", json::Value::array({json::Value::object(
                          {{"reason", "ResourceVersionTooLarge"}, {"message", text}})})},
           {"retryAfterSeconds", 1}})};
}

ApiError internal(const std::string& message) { return {500, "InternalError", message, {}}; }

ApiError json_patch_failed(bool test_failed, const std::string& why) {
  (void)why;  // the real server drops it, too
  ApiError e{422, "Invalid", "the server rejected our request due to an error in our request",
             json::Value::object()};
  e.test_failed = test_failed;
  return e;
}

}  // namespace api_error
}  // namespace rubato::kube
