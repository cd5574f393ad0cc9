#include "kube/errors.h"

#include "common/utf8.h"

#include <algorithm>
#include <charconv>

namespace rubato::kube {
namespace {

// What the API server says of any JSON patch that it could not apply.
constexpr std::string_view kPatchRefused =
    "the server rejected our request due to an error in our request";

// What the API server itself says, without a Status, of a path it does not serve: a CRD that is not
// installed.
constexpr std::string_view kUnknownPath = "404 page not found";

bool has_cause(const json::Value& status, std::string_view reason) {
  for (const auto& cause : status["details"]["causes"].items()) {
    if (cause["reason"].string_view_or("") == reason) return true;
  }
  return false;
}

Code code_of(int http_code, std::string_view reason) {
  switch (http_code) {
    case 401:
    case 403:
      return Code::kDenied;
    case 404:
      return Code::kNotFound;
    case 408:
      return Code::kTimeout;
    case 409:
      return reason == "AlreadyExists" ? Code::kAlreadyExists : Code::kConflict;
    case 410:
      return Code::kExpired;
    case 429:
      return Code::kExhausted;
    case 500:
      return reason == "ServerTimeout" ? Code::kTimeout : Code::kInternal;
    case 503:
      return Code::kUnavailable;
    case 504:
      return Code::kTimeout;
    default:
      return http_code >= 400 && http_code < 500 ? Code::kInvalid : Code::kInternal;
  }
}

std::chrono::milliseconds wait_asked(const json::Value& status, std::string_view header) {
  std::int64_t seconds = 0;
  const auto parsed = std::from_chars(header.data(), header.data() + header.size(), seconds);
  if (parsed.ec != std::errc{}) seconds = status["details"]["retryAfterSeconds"].int_or(0);
  return std::chrono::seconds(
      std::clamp<std::int64_t>(seconds, 0, std::chrono::seconds(kRetryAfterMax).count()));
}

}  // namespace

Error error_from_status(int http_code, const json::Value& status, std::string_view retry_after,
                        std::source_location where) {
  const int code = http_code != 0 ? http_code : static_cast<int>(status["code"].int_or(500));
  std::string reason = status["reason"].string_or("");
  std::string message = status["message"].string_or("");
  if (message.empty()) message = "HTTP " + std::to_string(code);

  Code kind = code_of(code, reason);
  if (code == 504 && has_cause(status, "ResourceVersionTooLarge")) {
    kind = Code::kExpired;
    reason = "ResourceVersionTooLarge";
  } else if (code == 403 && has_cause(status, "NamespaceTerminating")) {
    reason = "NamespaceTerminating";
  } else if (code == 403 && message.find("exceeded quota") != std::string::npos) {
    reason = "ExceededQuota";
  } else if (code == 500 && (message.find("request is too large") != std::string::npos ||
                             message.find("message larger than max") != std::string::npos)) {
    kind = Code::kInvalid;  // etcd's refusal of an object of more than 1.5 MiB, and its client's
    reason = "RequestEntityTooLarge";
    message += " (the object is larger than etcd takes: 1.5 MiB)";
  }
  if (code == 401) reason = "Unauthorized";  // some authenticators say nothing
  Error error(kind, std::move(message), where);
  error.set_reason(std::move(reason)).set_retry_after(wait_asked(status, retry_after));
  return error;
}

Error error_from_body(int http_code, std::string_view body, std::string_view retry_after,
                      std::source_location where) {
  constexpr std::size_t kShown = 200;
  if (auto parsed = json::parse(body);
      parsed.ok() && parsed.value()["kind"].string_view_or("") == "Status") {
    return error_from_status(http_code, parsed.value(), retry_after, where);
  }
  json::Value status;
  status.set("message", "HTTP " + std::to_string(http_code) +
                            (body.empty() ? "" : ": " + std::string(utf8_prefix(body, kShown))));
  const Error error = error_from_status(http_code, status, retry_after, where);
  // Something between us and the API server spoke. Its "404" does not mean that an object is gone,
  // and its "400" not that ours is wrong: neither may end a job.
  const bool is_verdict = error.code() == Code::kInvalid || error.code() == Code::kNotFound;
  if (!is_verdict || body.starts_with(kUnknownPath)) return error;
  return Error(Code::kUnavailable, error.what() + " (not an answer of an API server)", where)
      .set_retry_after(error.retry_after());
}

bool is_unauthorized(const Error& error) {
  return error.code() == Code::kDenied && error.reason() == "Unauthorized";
}

bool is_forbidden(const Error& error) {
  return error.code() == Code::kDenied && !is_unauthorized(error);
}

bool is_denied_by_admission(const Error& error) {
  return error.code() == Code::kInvalid &&
         (error.what().find("denied the request") != std::string::npos ||
          error.what().find("denied request") != std::string::npos);
}

bool may_have_happened(const Error& error) {
  switch (error.code()) {
    case Code::kInternal:
    case Code::kTimeout:
    case Code::kUnavailable:
    case Code::kCancelled:
      return error.reason() != kNotLeading;
    case Code::kInvalid:
    case Code::kNotFound:
    case Code::kAlreadyExists:
    case Code::kConflict:
    case Code::kExpired:
    case Code::kDenied:
    case Code::kExhausted:
      return false;
  }
  return true;
}

json::Value make_status(int http_code, const std::string& reason, const std::string& message) {
  return json::Value::object({{"kind", "Status"},
                              {"apiVersion", "v1"},
                              {"metadata", json::Value::object()},
                              {"status", "Failure"},
                              {"message", message},
                              {"reason", reason},
                              {"code", http_code}});
}

bool is_unexplained_patch_failure(const Error& error) {
  return error.code() == Code::kInvalid && error.reason() == "Invalid" &&
         error.what().find(kPatchRefused) != std::string::npos;
}

}  // namespace rubato::kube
