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
