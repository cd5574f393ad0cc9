// The one place where an answer of an API server becomes an Error. Clients, the in-memory server
// and watches (ERROR events) all go through here, so that one table decides how each failure is
// retried:
//
//   400 405 406 413 415 422 …      kInvalid      wrong and stays wrong; wait for a spec change
//   401                            kDenied       the client has already retried with a new token
//   403                            kDenied       reasons "NamespaceTerminating" and "ExceededQuota"
//                                                are told apart from plain "Forbidden"
//   404                            kNotFound
//   408                            kTimeout
//   409 AlreadyExists              kAlreadyExists
//   409 otherwise                  kConflict     read again, decide again
//   410                            kExpired      list again
//   429                            kExhausted    retry_after() says when
//   500 and other 5xx              kInternal     the write may have happened: read before repeating
//   500 reason ServerTimeout       kTimeout
//   503                            kUnavailable
//   504 ResourceVersionTooLarge    kExpired      list again with an empty resourceVersion
//   504                            kTimeout
#pragma once

#include "common/json.h"
#include "common/result.h"

#include <string>
#include <string_view>

namespace rubato::kube {

// The longest Retry-After we believe.
constexpr auto kRetryAfterMax = std::chrono::seconds(60);

// `status`: the Status object of the body, or null when the body was something else (a proxy).
// `retry_after`: value of the Retry-After header; wins over details.retryAfterSeconds.
// `http_code` 0: take the code from the Status (ERROR events of a watch).
Error error_from_status(int http_code, const json::Value& status, std::string_view retry_after = {},
                        std::source_location where = std::source_location::current());

// The same from the bytes of a body, of any content.
Error error_from_body(int http_code, std::string_view body, std::string_view retry_after = {},
                      std::source_location where = std::source_location::current());

// A `kind: Status` failure, as an API server writes it.
json::Value make_status(int http_code, const std::string& reason, const std::string& message);

// True when the API server refused a JSON patch without saying which operation failed: a `test`
// that did not hold looks exactly like a missing path (422, reason Invalid, no causes).
bool is_unexplained_patch_failure(const Error& error);

}  // namespace rubato::kube
