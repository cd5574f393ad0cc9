// The one place where an answer of an API server becomes an Error. Clients, the in-memory server
// and watches (ERROR events) all go through here, so that one table decides how each failure is
// retried:
//
//   400 405 406 413 415 422 …      kInvalid      wrong and stays wrong; wait for a spec change
//   401                            kDenied       the client has already retried with a new token;
//                                                reason "Unauthorized": not for ever, see below
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
//   500 of etcd: too large         kInvalid      reason "RequestEntityTooLarge"
//   503                            kUnavailable
//   504 ResourceVersionTooLarge    kExpired      list again with an empty resourceVersion
//   504                            kTimeout
//   400, 404 … without a Status    kUnavailable  a load balancer's page, no verdict on the object
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

// True when the server does not know us, for now: a token that is being rotated, a server that
// cannot reach its authenticator. Unlike a 403 it passes without a human.
bool is_unauthorized(const Error& error);
// True when the server knows us and refuses (403: RBAC, a quota, Pod Security): a human can mend
// it.
bool is_forbidden(const Error& error);
// An admission policy or webhook refused the object as invalid: what it says may change, though the
// object does not.
bool is_denied_by_admission(const Error& error);

// reason() of the kUnavailable that a FencedClient gives to writes outside the Lease: never sent.
inline constexpr std::string_view kNotLeading = "NotLeading";

// True when a write that failed so may have been done all the same: the answer was lost, or came
// from somewhere behind the effect. Read before deciding that it was not.
bool may_have_happened(const Error& error);

// A `kind: Status` failure, as an API server writes it.
json::Value make_status(int http_code, const std::string& reason, const std::string& message);

// True when the API server refused a JSON patch without saying which operation failed: a `test`
// that did not hold looks exactly like a missing path (422, reason Invalid, no causes).
bool is_unexplained_patch_failure(const Error& error);

}  // namespace rubato::kube
