#include "apiserver/front/router.h"

#include "common/clock.h"

#include <string>

#include <gtest/gtest.h>

namespace rubato::apiserver {
namespace {

class RouterTest : public ::testing::Test {
 protected:
  Response send(const std::string& method, const std::string& target, const std::string& body = "",
                const std::string& content_type = "application/json") {
    Request request;
    request.method = method;
    EXPECT_TRUE(parse_target(target, request).ok()) << target;
    request.authorization = "Bearer secret";
    request.content_type = content_type;
    request.body = body;
    return router_.handle(request).response;
  }
  void make_config_map(const std::string& name) {
    const std::string body = R"({"metadata":{"name":")" + name + R"("}})";
    ASSERT_EQ(send("POST", kConfigMaps, body).status, 201);
  }
  bool has_config_map(const std::string& name) {
    return send("GET", std::string(kConfigMaps) + "/" + name).status == 200;
  }

  static constexpr const char* kConfigMaps = "/api/v1/namespaces/default/configmaps";
  SystemClock clock_;
  kube::MemoryServer server_{clock_};
  Router router_{server_, "secret"};
};

TEST_F(RouterTest, ADryRunDeletesNoCollection) {
  make_config_map("a");
  const Response asked = send("DELETE", std::string(kConfigMaps) + "?dryRun=All");
  EXPECT_EQ(asked.status, 200);
  const auto would_go = json::parse(asked.body);
  ASSERT_TRUE(would_go.ok());
  EXPECT_EQ((*would_go)["items"].size(), 1U);
  EXPECT_EQ(send("DELETE", kConfigMaps, R"({"dryRun":["All"]})").status, 200);
  EXPECT_TRUE(has_config_map("a"));
  EXPECT_EQ(send("DELETE", kConfigMaps).status, 200);
  EXPECT_FALSE(has_config_map("a"));
}

TEST_F(RouterTest, ADryRunThatIsMisspeltIsNoDeletion) {
  make_config_map("a");
  const std::string a = std::string(kConfigMaps) + "/a";
  for (const char* query : {"?dryRun=true", "?dryRun=", "?dryRun=All&dryRun=all"})
    for (const std::string& place : {a, std::string(kConfigMaps)})
      EXPECT_EQ(send("DELETE", place + query).status, 422) << place << query;
  const Response refused = send("DELETE", a, R"({"dryRun":["x"]})");
  EXPECT_NE(refused.body.find("dryRun: Unsupported value: [\\\"x\\\"]: supported values: "),
            std::string::npos)
      << refused.body;
  for (const char* body : {R"({"dryRun":"All"})", R"({"gracePeriodSeconds":"0"})", "[1]"})
    EXPECT_EQ(send("DELETE", a, body).status, 400) << body;
  EXPECT_EQ(send("DELETE", a + "?gracePeriodSeconds=x").status, 400);
  EXPECT_TRUE(has_config_map("a"));
}

TEST_F(RouterTest, OptionsOfWritesAreChecked) {
  make_config_map("a");
  const std::string a = std::string(kConfigMaps) + "/a";
  const char* const merge = "application/merge-patch+json";
  const char* const apply = "application/apply-patch+yaml";
  const std::string object = R"({"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}})";
  struct Case {
    const char* method;
    std::string target;
    std::string body;
    const char* type;
    int status;
    const char* why;
  };
  const Case cases[] = {
      {"POST", std::string(kConfigMaps) + "?fieldValidation=Foo", object, "application/json", 422,
       "CreateOptions.meta.k8s.io"},
      {"PUT", a + "?fieldValidation=Foo", object, "application/json", 422, "fieldValidation"},
      {"PUT", a + "?fieldManager=" + std::string(129, 'x'), object, "application/json", 422,
       "may not be more than 128 bytes"},
      {"PATCH", a + "?force=true", "{}", merge, 422, "may not be specified for non-apply patch"},
      {"PATCH", a, object, apply, 422, "fieldManager: Required value: is required for apply patch"},
      {"PATCH", a + "?fieldManager=m", object, apply, 200, ""},
      {"POST", "/api/v1/configmaps", object, "application/json", 405, "does not allow"},
      {"GET", std::string(kConfigMaps) + "?limit=x", "", "", 400, "invalid syntax"},
      {"GET", std::string(kConfigMaps) + "?limit=99999999999999999999", "", "", 400,
       "value out of range"},
      {"HEAD", kConfigMaps, "", "", 405, "does not allow"}};
  for (const Case& c : cases) {
    const Response answer = send(c.method, c.target, c.body, c.type);
    EXPECT_EQ(answer.status, c.status) << c.target << ": " << answer.body;
    EXPECT_NE(answer.body.find(c.why), std::string::npos) << c.target << ": " << answer.body;
  }
}

// test_bad_manifests.py has the same of the real server.
TEST_F(RouterTest, AFieldWrittenTwiceIsRefusedWhereTheRequestIsStrict) {
  make_config_map("a");
  const std::string a = std::string(kConfigMaps) + "/a";
  const char* const object =
      R"({"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","name":"a"}})";
  const char* const patch = R"({"data":{"k":"1","k":"2"}})";
  const char* const merge = "application/merge-patch+json";
  for (const char* lax : {"", "?fieldValidation=Warn", "?fieldValidation=Ignore"}) {
    EXPECT_EQ(send("PUT", a + lax, object).status, 200) << lax;
    EXPECT_EQ(send("PATCH", a + lax, patch, merge).status, 200) << lax;
  }
  const std::string strict = "?fieldValidation=Strict";
  const Response put = send("PUT", a + strict, object);
  EXPECT_EQ(put.status, 400);
  EXPECT_NE(put.body.find("strict decoding error: JSON: metadata has \\\"name\\\" twice"),
            std::string::npos)
      << put.body;
  EXPECT_EQ(send("POST", kConfigMaps + strict, object).status, 400);
  EXPECT_EQ(send("PATCH", a + strict, patch, merge).status, 422);
}

TEST_F(RouterTest, ATokenContinuesTheListThatItIsOf) {
  for (const char* name : {"a", "b", "c"}) make_config_map(name);
  const json::Value first =
      json::parse(send("GET", std::string(kConfigMaps) + "?limit=1").body).value();
  const std::string rest = "?limit=1&continue=" + first["metadata"]["continue"].string_or("");
  for (const char* other : {"/api/v1/namespaces/default/secrets", "/api/v1/configmaps",
                            "/api/v1/namespaces/kube-system/configmaps"})
    EXPECT_EQ(send("GET", other + rest).status, 400) << other;
  EXPECT_EQ(send("GET", std::string(kConfigMaps) + "?continue=garbage").status, 400);
  EXPECT_EQ(send("GET", std::string(kConfigMaps) + "?continue=999").status, 410);
  const json::Value second = json::parse(send("GET", kConfigMaps + rest).body).value();
  EXPECT_EQ(second["items"][0]["metadata"]["name"].string_or(""), "b");
}

TEST_F(RouterTest, ObjectsAreBoundedAsInEtcd) {
  const std::string text(200'000, 'x');
  std::string pod = R"({"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"x:1",
                        "env":[)";
  for (int i = 0; i < 10; ++i)
    pod += std::string(i == 0 ? "" : ",") + R"({"name":"A","value":")" + text + R"("})";
  const Response refused = send("POST", "/api/v1/namespaces/default/pods", pod + "]}]}}");
  EXPECT_EQ(refused.status, 500);
  EXPECT_NE(refused.body.find("etcdserver: request is too large"), std::string::npos);
  make_config_map("a");
  std::string patch = R"({"data":{)";
  for (int i = 0; i < 6; ++i)
    patch += std::string(i == 0 ? "" : ",") + "\"k" + std::to_string(i) + "\":\"" + text + "\"";
  EXPECT_EQ(
      send("PATCH", std::string(kConfigMaps) + "/a", patch + "}}", "application/merge-patch+json")
          .status,
      422);
}

TEST_F(RouterTest, LinesOfLogsAreAskedForAsTheyMayBe) {
  ASSERT_EQ(send("POST", "/api/v1/nodes", R"({"metadata":{"name":"n1"}})").status, 201);
  ASSERT_EQ(send("PATCH", "/api/v1/nodes/n1/status",
                 R"({"status":{"addresses":[{"type":"InternalIP","address":"127.0.0.1"}],
                     "daemonEndpoints":{"kubeletEndpoint":{"Port":10250}}}})",
                 "application/merge-patch+json")
                .status,
            200);
  ASSERT_EQ(send("POST", "/api/v1/namespaces/default/pods",
                 R"({"metadata":{"name":"p"},
                     "spec":{"nodeName":"n1","containers":[{"name":"c","image":"x:1"}]}})")
                .status,
            201);
  const auto asked = [&](const std::string& query) {
    Request request;
    request.method = "GET";
    EXPECT_TRUE(parse_target("/api/v1/namespaces/default/pods/p/log?" + query, request).ok());
    request.authorization = "bearer secret";
    const Reply reply = router_.handle(request);
    return reply.log ? reply.log->target : std::to_string(reply.response.status);
  };
  const std::string plain = "/containerLogs/default/p/c";
  EXPECT_EQ(asked("container=c"), plain);
  EXPECT_EQ(asked("follow&timestamps=1&previous=false&pretty=true"),
            plain + "?follow=true&timestamps=true");
  EXPECT_EQ(asked("tailLines=0&limitBytes=5&sinceSeconds=99999999999"),
            plain + "?tailLines=0&sinceSeconds=1000000000&limitBytes=5");
  EXPECT_EQ(asked("sinceTime=2030-01-01T00%3A00%3A00Z"),
            plain + "?sinceTime=2030-01-01T00%3A00%3A00Z");
  for (const char* query : {"tailLines=-3", "limitBytes=0", "sinceSeconds=0",
                            "sinceTime=2030-01-01T00%3A00%3A00Z&sinceSeconds=4"})
    EXPECT_EQ(asked(query), "422") << query;
  for (const char* query : {"tailLines=abc", "tailLines=99999999999999999999", "sinceTime=today"})
    EXPECT_EQ(asked(query), "400") << query;
}

TEST_F(RouterTest, ACollectionIsDeletedInOneNamespace) {
  make_config_map("a");
  EXPECT_EQ(send("DELETE", "/api/v1/configmaps").status, 405);
  EXPECT_TRUE(has_config_map("a"));
}

TEST_F(RouterTest, NamespacesAreNotDeletedAsACollection) {
  make_config_map("a");
  EXPECT_EQ(send("DELETE", "/api/v1/namespaces").status, 405);
  EXPECT_TRUE(has_config_map("a"));
  const Response found = send("GET", "/api/v1");
  const json::Value listed = json::parse(found.body).value();
  for (const json::Value& resource : listed["resources"].items()) {
    if (resource["name"] != json::Value("namespaces")) continue;
    EXPECT_EQ(json::dump(resource["verbs"]).find("deletecollection"), std::string::npos);
  }
}

TEST_F(RouterTest, AHugeGraceIsTheMostThereIs) {
  ASSERT_EQ(send("POST", "/api/v1/namespaces/default/pods",
                 R"({"metadata":{"name":"p"},
                     "spec":{"nodeName":"n1","containers":[{"name":"c","image":"x:1"}]}})")
                .status,
            201);
  const std::string pod = "/api/v1/namespaces/default/pods/p";
  // As a 32-bit number this is 0, and the pod would go at once.
  EXPECT_EQ(send("POST", pod + "/eviction",
                 R"({"metadata":{"name":"p"},"deleteOptions":{"gracePeriodSeconds":4294967296}})")
                .status,
            201);
  EXPECT_EQ(send("GET", pod).status, 200);
}

TEST_F(RouterTest, ABodyThatIsNoObjectIsRefused) {
  struct Case {
    const char* method;
    const char* target;
    const char* body;
    const char* content_type = "application/json";
  };
  make_config_map("a");
  ASSERT_EQ(send("POST", "/api/v1/namespaces/default/pods",
                 R"({"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"x:1"}]}})")
                .status,
            201);
  const char* const pod = "/api/v1/namespaces/default/pods/p";
  const Case cases[] = {
      {"POST", kConfigMaps, "[]"},
      {"POST", kConfigMaps, "5"},
      {"POST", kConfigMaps, ""},
      {"POST", kConfigMaps, "- a", "application/yaml"},
      {"POST", "/api/v1/namespaces/default/pods/p/binding", "[]"},
      {"POST", "/api/v1/namespaces/default/pods/p/binding", R"({"metadata":"x"})"},
      {"POST", "/api/v1/namespaces/default/pods/p/eviction", R"("x")"},
      {"PUT", "/api/v1/namespaces/default/configmaps/a", "[]"},
      {"PUT", "/api/v1/namespaces/default/configmaps/a", R"({"metadata":[]})"},
      {"PUT", "/apis/coordination.k8s.io/v1/namespaces/default/leases/new", "[]"},
      {"PATCH", "/api/v1/namespaces/default/configmaps/new", "[]", "application/apply-patch+yaml"},
      {"PATCH", "/api/v1/namespaces/default/configmaps/new", "metadata: x",
       "application/apply-patch+yaml"},
      {"PATCH", pod, R"([{"op":"replace","path":"","value":"x"}])", "application/json-patch+json"},
      {"PATCH", pod, R"([{"op":"remove","path":""}])", "application/json-patch+json"}};
  for (const Case& c : cases) {
    const int status = send(c.method, c.target, c.body, c.content_type).status;
    EXPECT_TRUE(status >= 400 && status < 500)
        << c.method << " " << c.target << " " << c.body << ": " << status;
    EXPECT_TRUE(has_config_map("a"));
  }
}

TEST_F(RouterTest, WhatAKubeletWouldCarryIsRefusedByName) {
  for (const char* subresource : {"exec", "attach", "portforward", "proxy"})
    for (const char* method : {"GET", "POST"}) {
      const Response refused =
          send(method, std::string("/api/v1/namespaces/default/pods/p/") + subresource, "", "");
      EXPECT_EQ(refused.status, 501) << method << " " << subresource;
      EXPECT_NE(refused.body.find("use kubectl logs"), std::string::npos) << refused.body;
    }
}

TEST_F(RouterTest, SidecarsCountAsReadyContainersAndHoldNoPodBack) {
  ASSERT_EQ(send("POST", "/api/v1/namespaces/default/pods",
                 R"({"metadata":{"name":"p"},"spec":{
                     "initContainers":[{"name":"s","image":"x:1","restartPolicy":"Always"},
                                       {"name":"i","image":"x:1"}],
                     "containers":[{"name":"c","image":"x:1"}]}})")
                .status,
            201);
  const auto row = [&](const char* status) {
    EXPECT_EQ(send("PATCH", "/api/v1/namespaces/default/pods/p/status",
                   std::string(R"({"status":)") + status + "}", "application/merge-patch+json")
                  .status,
              200);
    Request request;
    EXPECT_TRUE(parse_target("/api/v1/namespaces/default/pods/p", request).ok());
    request.method = "GET";
    request.authorization = "Bearer secret";
    request.accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    const auto table = json::parse(router_.handle(request).response.body).value();
    const json::Value& cells = table["rows"][0]["cells"];
    return cells[1].string_or("") + " " + cells[2].string_or("");
  };
  EXPECT_EQ(row(R"({"phase":"Pending","initContainerStatuses":[
                     {"name":"s","ready":true,"started":true,"state":{"running":{}}},
                     {"name":"i","ready":false,"started":true,"state":{"running":{}}}]})"),
            "1/2 Init:1/2");
  EXPECT_EQ(row(R"({"phase":"Running","conditions":[{"type":"Initialized","status":"True"},
                                                    {"type":"Ready","status":"True"}],
                    "initContainerStatuses":[
                     {"name":"s","ready":true,"started":true,"state":{"running":{}}},
                     {"name":"i","ready":true,"started":true,"state":{"terminated":{"exitCode":0}}}],
                    "containerStatuses":[
                     {"name":"c","ready":true,"started":true,"state":{"running":{}}}]})"),
            "2/2 Running");
  EXPECT_EQ(row(R"({"phase":"Failed","initContainerStatuses":[
                     {"name":"s","ready":false,"started":false,
                      "state":{"terminated":{"exitCode":143,"reason":"Error"}}}],
                    "containerStatuses":[{"name":"c","ready":false,"started":false,
                      "state":{"terminated":{"exitCode":1,"reason":"Error"}}}]})"),
            "0/2 Error");
}

}  // namespace
}  // namespace rubato::apiserver
