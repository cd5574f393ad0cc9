#include "tools/localnode/volumes.h"

#include "tests/unit/kube/sim_fixture.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace rubato::localnode {
namespace {

namespace fs = std::filesystem;
using json::Value;
using Environment = std::map<std::string, std::string>;

TEST(Expand, IsAKubelets) {
  const Environment known = {{"A", "1"}, {"EMPTY", ""}};
  const std::pair<const char*, const char*> cases[] = {{"$(A)$(A) $(EMPTY).", "11 ."},
                                                       {"$(NONE)", "$(NONE)"},
                                                       {"$$(A)", "$(A)"},
                                                       {"$$$(A)", "$1"},
                                                       {"$$", "$"},
                                                       {"$A ${A} $", "$A ${A} $"},
                                                       {"$(A", "$(A"},
                                                       {"", ""}};
  for (const auto& [text, expected] : cases) EXPECT_EQ(expand(text, known), expected) << text;
}

struct EnvironmentTest : ::testing::Test {
  void add(const kube::ResourceType& type, const std::string& name, const Value& data,
           const Value& binary = Value()) {
    Value object =
        Value::object({{"apiVersion", "v1"},
                       {"kind", type.kind},
                       {"metadata", Value::object({{"name", name}, {"namespace", "default"}})},
                       {"data", data}});
    if (!binary.is_null()) object.set("binaryData", binary);
    CHECK(world.server.create(type, "default", object).ok());
  }
  Result<Environment> of(const char* container) {
    const Value pod =
        Value::object({{"metadata", Value::object({{"name", "p"}, {"namespace", "default"}})}});
    return environment_of(world.client, pod, json::parse(container).value());
  }
  kube::SimWorld world{1};
};

TEST_F(EnvironmentTest, TakesAllOfASecretOrConfigMapAndEnvWins) {
  add(kube::types::kConfigMap, "plain", Value::object({{"A", "a"}, {"B", "b"}}));
  add(kube::types::kSecret, "hidden", Value::object({{"B", "c2VjcmV0"}}));
  const auto found = of(R"json({
    "envFrom": [{"configMapRef": {"name": "plain"}},
                {"prefix": "X_", "secretRef": {"name": "hidden"}},
                {"configMapRef": {"name": "none", "optional": true}}],
    "env": [{"name": "A", "value": "$(B) and $(X_B)"}]})json");
  ASSERT_TRUE(found.ok()) << found.error().what();
  EXPECT_EQ(*found, (Environment{{"A", "b and secret"}, {"B", "b"}, {"X_B", "secret"}}));
}

TEST_F(EnvironmentTest, KnowsTheContainersOwnResources) {
  const auto found = of(R"({"name": "none", "env": [{"name": "CPUS", "valueFrom":
      {"resourceFieldRef": {"resource": "limits.cpu"}}}]})");
  ASSERT_FALSE(found.ok());  // the pod has no such container
  EXPECT_NE(found.error().what().find("the container \"none\""), std::string::npos);
}

TEST_F(EnvironmentTest, WaitsForWhatIsNotOptional) {
  const auto missing = of(R"({"envFrom": [{"secretRef": {"name": "late"}}]})");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
  EXPECT_NE(missing.error().what().find("envFrom late"), std::string::npos);
}

// Volumes of one pod, in a folder that goes with the test.
struct VolumesTest : EnvironmentTest {
  VolumesTest() {
    char path[] = "/tmp/rubato-volume-XXXXXX";
    folder = mkdtemp(path);
  }
  ~VolumesTest() override { fs::remove_all(folder); }
  Status make(const std::string& volume) {
    const Value pod =
        json::parse(R"({"metadata": {"name": "p", "namespace": "default", "labels": {"a": "1"}},
                        "spec": {"volumes": [)" +
                    volume + "]}}")
            .value();
    const auto made = Volumes(world.client, "/nowhere").prepare(pod, folder);
    return made.ok() ? ok() : Status(made.error());
  }
  std::string read(const std::string& file) const {
    std::ifstream in(folder + "/volumes/v/" + file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  auto mode(const std::string& file) const {
    return static_cast<unsigned>(fs::status(folder + "/volumes/v/" + file).permissions());
  }
  std::string folder;
};

TEST_F(VolumesTest, HaveTheBinaryDataOfAConfigMap) {
  add(kube::types::kConfigMap, "plain", Value::object({{"text", "a"}}),
      Value::object({{"bytes", "AP8="}}));
  ASSERT_TRUE(make(R"({"name": "v", "configMap": {"name": "plain"}})").ok());
  EXPECT_EQ(read("text"), "a");
  EXPECT_EQ(read("bytes"), std::string("\0\xff", 2));
}

TEST_F(VolumesTest, WaitForAKeyThatIsNamed) {
  add(kube::types::kConfigMap, "plain", Value::object({{"here", "a"}}));
  const std::string items =
      R"("items": [{"key": "here", "path": "x/y"}, {"key": "late", "path": "z"}])";
  const Status made = make(R"({"name": "v", "configMap": {"name": "plain", )" + items + "}}");
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), Code::kNotFound);
  EXPECT_NE(made.error().what().find("ConfigMap plain has no key \"late\""), std::string::npos);
  ASSERT_TRUE(
      make(R"({"name": "v", "configMap": {"name": "plain", "optional": true, )" + items + "}}")
          .ok());
  EXPECT_EQ(read("x/y"), "a");
  EXPECT_FALSE(fs::exists(folder + "/volumes/v/z"));
}

TEST_F(VolumesTest, FilesHaveTheirModes) {
  add(kube::types::kSecret, "hidden", Value::object({{"a", "eA=="}, {"b", "eA=="}}));
  add(kube::types::kConfigMap, "plain", Value::object({{"run", "x"}, {"more", "x"}}));
  ASSERT_TRUE(make(R"({"name": "v", "secret": {"secretName": "hidden", "items":
                       [{"key": "a", "path": "a"}, {"key": "b", "path": "b", "mode": 292}]}})")
                  .ok());
  EXPECT_EQ(mode("a"), 0400U);
  EXPECT_EQ(mode("b"), 0444U);
  ASSERT_TRUE(make(R"({"name": "v", "projected": {"defaultMode": 493, "sources":
                       [{"configMap": {"name": "plain"}}]}})")
                  .ok());
  EXPECT_EQ(mode("run"), 0755U);
}

TEST_F(VolumesTest, TellThePodsLabels) {
  ASSERT_TRUE(make(R"({"name": "v", "downwardAPI": {"items":
                       [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}})")
                  .ok());
  EXPECT_EQ(read("labels"), "a=\"1\"");
}

TEST_F(VolumesTest, ASourceThatIsNotOfferedIsNamed) {
  const Status made = make(R"({"name": "v", "projected": {"sources":
                               [{"serviceAccountToken": {"path": "token"}}]}})");
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), Code::kInvalid);
  EXPECT_NE(made.error().what().find("\"serviceAccountToken\""), std::string::npos);
}

TEST(SubPath, OfAnExpressionIsTheContainers) {
  const Environment known = {{"POD", "p-1"}};
  const auto of = [&](const char* mount) { return sub_path_in(json::parse(mount).value(), known); };
  EXPECT_EQ(of(R"json({"subPathExpr": "logs/$(POD)"})json").value(), "logs/p-1");
  EXPECT_EQ(of(R"json({"subPath": "a/$(POD)"})json").value(), "a/$(POD)");
  EXPECT_EQ(of("{}").value(), "");
  const auto unknown = of(R"json({"subPathExpr": "$(NONE)/x"})json");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code(), Code::kInvalid);
  EXPECT_NE(unknown.error().what().find("variable NONE"), std::string::npos);
}

TEST(Volumes, WhatTheNodeWritesIsReadOnly) {
  const auto pod = json::parse(R"({"spec":{"volumes":[
      {"name":"a","secret":{"secretName":"x"}},{"name":"b","configMap":{"name":"x"}},
      {"name":"c","downwardAPI":{}},{"name":"d","projected":{}},
      {"name":"e","emptyDir":{}},{"name":"f","persistentVolumeClaim":{"claimName":"x"}}]}})");
  for (const char* name : {"a", "b", "c", "d"}) EXPECT_TRUE(is_written_here(*pod, name)) << name;
  for (const char* name : {"e", "f", "g"}) EXPECT_FALSE(is_written_here(*pod, name)) << name;
}

}  // namespace
}  // namespace rubato::localnode
