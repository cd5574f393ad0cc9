#include "kube/errors.h"

#include <gtest/gtest.h>

namespace rubato::kube {
namespace {

TEST(Errors, TableOfCodes) {
  struct Row {
    int http;
    const char* reason;
    Code code;
  };
  for (const Row& row :
       {Row{400, "BadRequest", Code::kInvalid}, Row{401, "Unauthorized", Code::kDenied},
        Row{403, "Forbidden", Code::kDenied}, Row{404, "NotFound", Code::kNotFound},
        Row{405, "MethodNotAllowed", Code::kInvalid}, Row{408, "", Code::kTimeout},
        Row{409, "AlreadyExists", Code::kAlreadyExists}, Row{409, "Conflict", Code::kConflict},
        Row{410, "Expired", Code::kExpired}, Row{413, "", Code::kInvalid},
        Row{415, "", Code::kInvalid}, Row{422, "Invalid", Code::kInvalid},
        Row{429, "TooManyRequests", Code::kExhausted}, Row{500, "InternalError", Code::kInternal},
        Row{500, "ServerTimeout", Code::kTimeout}, Row{502, "", Code::kInternal},
        Row{503, "ServiceUnavailable", Code::kUnavailable}, Row{504, "Timeout", Code::kTimeout}}) {
    const Error error = error_from_status(row.http, make_status(row.http, row.reason, "why"));
    EXPECT_EQ(error.code(), row.code) << row.http << " " << row.reason;
    EXPECT_EQ(error.reason(), row.reason);
    EXPECT_EQ(error.what(), "why");
    // An ERROR event of a watch carries the code inside.
    EXPECT_EQ(error_from_status(0, make_status(row.http, row.reason, "why")).code(), row.code);
  }
}

json::Value with_cause(int code, const char* cause) {
  auto status = make_status(code, "X", "why");
  status.at("details").set("causes",
                           json::Value::array({json::Value::object({{"reason", cause}})}));
  return status;
}

TEST(Errors, CausesTellApart) {
  const Error large = error_from_status(504, with_cause(504, "ResourceVersionTooLarge"));
  EXPECT_EQ(large.code(), Code::kExpired);
  EXPECT_EQ(large.reason(), "ResourceVersionTooLarge");
  EXPECT_EQ(error_from_status(403, with_cause(403, "NamespaceTerminating")).reason(),
            "NamespaceTerminating");
  EXPECT_EQ(
      error_from_status(403, make_status(403, "Forbidden", "pods: exceeded quota: q")).reason(),
      "ExceededQuota");
}

// What a server of 1.36 says to a status of 1.6 and one of 2.2 MB.
// A policy that says nothing of its own answers 422, a webhook 400: the object may be good.
TEST(Errors, APolicyDenies) {
  const auto denied = [](int code, const char* message) {
    const json::Value status = json::Value::object({{"message", message}, {"code", code}});
    return is_denied_by_admission(error_from_status(code, status, ""));
  };
  EXPECT_TRUE(denied(400, "admission webhook \"w.example.com\" denied the request: no"));
  EXPECT_TRUE(denied(422,
                     "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' "
                     "denied request: no"));
  EXPECT_FALSE(denied(422, "Pod \"p\" is invalid: spec.containers: Required value"));
}

TEST(Errors, TooLargeForEtcdStaysWrong) {
  for (const char* said : {"etcdserver: request is too large",
                           "rpc error: code = ResourceExhausted desc = trying to send message "
                           "larger than max (2201955 vs. 2097152)"}) {
    const Error error = error_from_status(500, make_status(500, "", said));
    EXPECT_EQ(error.code(), Code::kInvalid);
    EXPECT_EQ(error.reason(), "RequestEntityTooLarge");
    EXPECT_NE(error.what().find("larger than etcd takes: 1.5 MiB"), std::string::npos);
  }
}

TEST(Errors, RetryAfter) {
  auto status = make_status(429, "TooManyRequests", "slow");
  status.at("details").set("retryAfterSeconds", 3);
  EXPECT_EQ(error_from_status(429, status).retry_after(), std::chrono::seconds(3));
  EXPECT_EQ(error_from_status(429, status, "7").retry_after(), std::chrono::seconds(7));
  EXPECT_EQ(error_from_status(429, status, "86400").retry_after(), kRetryAfterMax);
  EXPECT_EQ(error_from_status(429, status, "-1").retry_after().count(), 0);
}

TEST(Errors, BodiesOfProxies) {
  const Error error = error_from_body(503, "<html>upstream is gone</html>");
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_NE(error.what().find("upstream"), std::string::npos);
  EXPECT_EQ(error_from_body(404, json::dump(make_status(404, "NotFound", "no x"))).what(), "no x");
  // Not the API server's words: no object is gone, and none is wrong.
  for (const int code : {400, 404, 405, 413}) {
    EXPECT_EQ(error_from_body(code, "<html>no such page</html>").code(), Code::kUnavailable)
        << code;
    EXPECT_EQ(error_from_body(code, "").code(), Code::kUnavailable) << code;
  }
  EXPECT_EQ(error_from_body(404, "404 page not found\n").code(), Code::kNotFound) << "no such CRD";
}

TEST(Errors, A401Passes) {
  EXPECT_TRUE(is_unauthorized(error_from_body(401, "")));
  EXPECT_TRUE(is_unauthorized(
      error_from_body(401, json::dump(make_status(401, "Unauthorized", "who are you?")))));
  EXPECT_FALSE(
      is_unauthorized(error_from_body(403, json::dump(make_status(403, "Forbidden", "not you")))));
}

TEST(Errors, WhatMayHaveHappened) {
  for (const int code : {500, 502, 503, 504})
    EXPECT_TRUE(may_have_happened(error_from_body(code, ""))) << code;
  for (const int code : {401, 403, 409, 410, 422, 429}) {
    const Error refused = error_from_body(code, json::dump(make_status(code, "X", "no")));
    EXPECT_FALSE(may_have_happened(refused)) << code;
  }
}

}  // namespace
}  // namespace rubato::kube
