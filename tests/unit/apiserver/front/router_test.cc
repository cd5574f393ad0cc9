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

}  // namespace
}  // namespace rubato::apiserver
