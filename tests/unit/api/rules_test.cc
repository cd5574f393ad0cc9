#include "operator/api/rules.h"

#include <set>

#include <gtest/gtest.h>

namespace rubato::api {
namespace {

using json::Value;

Value job(std::int64_t min, std::int64_t max) {
  return Value::object(
      {{"metadata", Value::object({{"name", "a"}})},
       {"spec", Value::object({{"gpus", Value::object({{"min", min}, {"max", max}})},
                               {"runtime", "builtin"},
                               {"training", Value::object({{"seed", 1}})},
                               {"accelerators", Value::object({{"mix", false}})}})}});
}

TEST(Rules, HaveDistinctIdsAndMessagesThatSayWhatToDo) {
  std::set<std::string> ids;
  for (const Rule& rule : rules()) {
    EXPECT_TRUE(ids.insert(rule.kind + "/" + rule.id).second) << rule.id;
    EXPECT_NE(rule.message.find_first_of(";,"), std::string::npos) << rule.message;
    EXPECT_TRUE(rule.field.starts_with(".")) << rule.id;
    EXPECT_EQ(rule.transition, rule.cel.find("oldSelf") != std::string::npos) << rule.id;
  }
}

TEST(Validate, NamesFieldAndMend) {
  EXPECT_TRUE(validate("TrainingJob", nullptr, job(1, 2)).empty());
  const auto found = validate("TrainingJob", nullptr, job(3, 2));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].field, "spec.gpus.min");
  EXPECT_EQ(found[0].message, "min is larger than max; lower gpus.min or raise gpus.max");
}

TEST(Validate, OtherKindsAreNotOurs) { EXPECT_TRUE(validate("Pod", nullptr, job(3, 2)).empty()); }

TEST(Validate, NumbersAreEqualWhateverTheirForm) {
  Value old = job(1, 2);
  old.at("spec").set("template", Value::object({{"level", "rack"}, {"depth", 1}}));
  Value now = job(1, 2);
  now.at("spec").set("template", Value::object({{"depth", 1.0}, {"level", "rack"}}));
  EXPECT_TRUE(validate("TrainingJob", old, now).empty());
  now.at("spec").at("template").set("depth", 2);
  EXPECT_EQ(validate("TrainingJob", old, now).at(0).field, "spec.template");
  now.at("spec").erase("template");
  EXPECT_EQ(validate("TrainingJob", old, now).at(0).field, "spec.template");
}

TEST(Validate, ItemsOfListsAreNumbered) {
  const Value quota = Value::object({{"gpuType", "b"}, {"guaranteed", 2}, {"limit", 1}});
  const Value queue = Value::object(
      {{"metadata", Value::object({{"name", "q"}})},
       {"spec",
        Value::object({{"quotas", Value::array({Value::object({{"guaranteed", 0}}), quota})}})}});
  EXPECT_EQ(validate("TrainingQueue", nullptr, queue).at(0).field, "spec.quotas[1].guaranteed");
}

}  // namespace
}  // namespace rubato::api
