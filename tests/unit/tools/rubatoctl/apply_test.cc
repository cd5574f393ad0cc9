#include "tests/unit/kube/sim_fixture.h"
#include "tools/rubatoctl/objects.h"

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

using json::Value;

TEST(CheckedChoice, TakesTheNameBehindTheSlash) {
  const auto choice = checked_choice({.resource = "tj/a", .names = {"b"}});
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->resource, "tj");
  EXPECT_EQ(choice->names, (std::vector<std::string>{"a", "b"}));
}

TEST(CheckedChoice, ThatNamesNothingDeletesNothing) {
  EXPECT_TRUE(checked_choice({.file = "jobs.yaml"}).ok());
  for (const DeleteChoice& choice :
       {DeleteChoice{.resource = "tj"}, DeleteChoice{.resource = "tj", .names = {""}},
        DeleteChoice{.resource = "tj/"}, DeleteChoice{.resource = "tj", .names = {"a", ""}},
        DeleteChoice{.resource = "tj", .names = {".."}},
        DeleteChoice{.resource = "tj", .names = {"a"}, .file = "jobs.yaml"},
        DeleteChoice{.names = {"a"}, .file = "jobs.yaml"}}) {
    const auto refused = checked_choice(choice);
    ASSERT_FALSE(refused.ok()) << choice.resource;
    EXPECT_EQ(refused.error().code(), Code::kInvalid);
  }
}

struct RemoveObjects : ::testing::Test {
  Status remove(const std::vector<std::string>& names, DeleteChoice choice = {}) {
    choice.timeout = 10s;
    std::vector<ObjectRef> targets;
    for (const std::string& name : names)
      targets.push_back({kube::types::kConfigMap, {"default", name}, ""});
    return remove_objects(world.client, world.home, targets, choice);
  }
  bool is_there(const std::string& name) {
    return world.server.get(kube::types::kConfigMap, {"default", name}).ok();
  }
  void set_finalizers(const std::string& name, Value finalizers) {
    const Value patch =
        Value::object({{"metadata", Value::object({{"finalizers", std::move(finalizers)}})}});
    ASSERT_TRUE(
        world.server
            .patch(kube::types::kConfigMap, {"default", name}, kube::PatchType::kMerge, patch)
            .ok());
  }
  kube::SimWorld world{1};
};

// One that a script has deleted before must not keep the others.
TEST_F(RemoveObjects, GoesOnAfterARefusalAndWaits) {
  world.make_config_map("b", 1);
  world.make_config_map("c", 1);
  set_finalizers("b", json::parse(R"(["example.dev/slow"])").value());
  const MonoTime begin = world.home.now();
  world.sim.at(world.sim.now() + 2s, [&] { set_finalizers("b", Value()); });
  const Status removed = remove({"a", "b", "c"});
  ASSERT_FALSE(removed.ok());
  EXPECT_EQ(removed.error().what(), "1 of 3 objects was not deleted");
  EXPECT_FALSE(is_there("b"));
  EXPECT_FALSE(is_there("c"));
  EXPECT_GE(world.home.now() - begin, 2s);
}

TEST_F(RemoveObjects, SaysOfOneWhatIsWrongWithIt) {
  EXPECT_EQ(remove({"a"}).error().code(), Code::kNotFound);
  EXPECT_TRUE(remove({"a"}, {.file = "maps.yaml"}).ok());
  world.make_config_map("a", 1);
  EXPECT_TRUE(remove({"a"}).ok());
}

// Those behind one that stays are waited for, too.
TEST_F(RemoveObjects, CountsThoseThatStay) {
  for (const char* name : {"a", "b", "c"}) world.make_config_map(name, 1);
  for (const char* name : {"a", "c"})
    set_finalizers(name, json::parse(R"(["example.dev/slow"])").value());
  EXPECT_EQ(remove({"a", "b", "c"}).error().what(), "2 of 3 objects were not deleted");
  EXPECT_FALSE(is_there("b"));
  EXPECT_TRUE(remove({"a", "c"}, {.wait = false}).ok());
}

}  // namespace
}  // namespace rubato::ctl
