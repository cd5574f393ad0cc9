#include "tools/rubatoctl/resources.h"

#include <map>

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

struct ResourceNamed : ::testing::Test {
  Result<kube::ResourceType> named(const std::string& word) {
    return resource_named(
        [this](const std::string& path) -> Result<std::string> {
          const auto at = answers.find(path);
          if (at == answers.end()) return Error(Code::kUnavailable, "GET " + path + ": 503");
          return at->second;
        },
        word);
  }
  std::map<std::string, std::string> answers{
      {"/apis", R"({"groups":[{"name":"down.dev","preferredVersion":{"groupVersion":"down.dev/v1"}},
                {"name":"apps","preferredVersion":{"groupVersion":"apps/v1"}}]})"},
      {"/api/v1", R"({"resources":[
          {"name":"resourcequotas","kind":"ResourceQuota","namespaced":true,"shortNames":["quota"]},
          {"name":"pods/log","kind":"Pod","namespaced":true}]})"},
      {"/apis/apps/v1", R"({"resources":[{"name":"deployments","singularName":"",
          "kind":"Deployment","namespaced":true}]})"}};
};

TEST_F(ResourceNamed, LooksAtTheCoreAndBehindGroupsThatAreDown) {
  for (const char* word : {"resourcequotas", "quota", "ResourceQuota"}) {
    const auto type = named(word);
    ASSERT_TRUE(type.ok()) << word << ": " << type.error().what();
    EXPECT_EQ(*type, (kube::ResourceType{"", "v1", "resourcequotas", "ResourceQuota", true}));
  }
  for (const char* word : {"deployment", "deployments.apps", "deployment.apps"})
    EXPECT_EQ(named(word).value_or({}).group, "apps") << word;
}

// `get -o name` says "trainingjob.rubato.dev/x", and `delete` takes that.
TEST_F(ResourceNamed, TakesTheNamesThatWePrint) {
  for (const kube::ResourceType& type :
       {named("tj").value_or({}), named("pod").value_or({}), named("deployments").value_or({})}) {
    const std::string name = display_name(type, "x");
    EXPECT_EQ(named(name.substr(0, name.find('/'))).value_or({}), type) << name;
  }
}

// It may be one of the group that did not answer.
TEST_F(ResourceNamed, IsUnknownOnlyWhereAllAnswered) {
  EXPECT_EQ(named("gizmos").error().code(), Code::kUnavailable);
  answers["/apis/down.dev/v1"] = R"({"resources":[]})";
  const auto unknown = named("gizmos");
  EXPECT_EQ(unknown.error().code(), Code::kNotFound);
  EXPECT_NE(unknown.error().what().find("`kubectl apply --server-side -f crds/`"),
            std::string::npos);
  answers.clear();
  EXPECT_EQ(named("gizmos").error().code(), Code::kUnavailable);
}

// Some servers say "" for the singular of a kind.
TEST_F(ResourceNamed, AnEmptyWordIsNoKind) {
  EXPECT_EQ(named("").error().code(), Code::kInvalid);
  EXPECT_EQ(named("tj,pods").error().code(), Code::kInvalid);
}

}  // namespace
}  // namespace rubato::ctl
