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
  void add(const kube::ResourceType& type, const std::string& name, const Value& data) {
    const Value object =
        Value::object({{"apiVersion", "v1"},
                       {"kind", type.kind},
                       {"metadata", Value::object({{"name", name}, {"namespace", "default"}})},
                       {"data", data}});
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

TEST_F(EnvironmentTest, WaitsForWhatIsNotOptional) {
  const auto missing = of(R"({"envFrom": [{"secretRef": {"name": "late"}}]})");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
  EXPECT_NE(missing.error().what().find("envFrom late"), std::string::npos);
}

TEST(SubPath, IsMadeWhenItIsMissing) {
  char path[] = "/tmp/rubato-volume-XXXXXX";
  const std::string volume = mkdtemp(path);
  EXPECT_EQ(sub_path_of(volume, "").value(), volume);
  EXPECT_EQ(sub_path_of(volume, "a/b").value(), volume + "/a/b");
  EXPECT_TRUE(fs::is_directory(volume + "/a/b"));
  std::ofstream(volume + "/file") << "x";
  EXPECT_EQ(sub_path_of(volume, "file").value(), volume + "/file");
  EXPECT_TRUE(fs::is_regular_file(volume + "/file"));
  for (const char* wrong : {"../x", "/etc"})
    EXPECT_EQ(sub_path_of(volume, wrong).error().code(), Code::kInvalid) << wrong;
  fs::remove_all(volume);
}

}  // namespace
}  // namespace rubato::localnode
