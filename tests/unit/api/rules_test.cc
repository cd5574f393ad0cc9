#include "operator/api/rules.h"

#include "operator/api/codec.h"
#include "operator/api/job_spec.h"

#include <set>

#include <gtest/gtest.h>

namespace rubato::api {
namespace {

using json::Value;

constexpr const char* kTraining =
    R"({"model":{"family":"gpt2","preset":"gpt2-demo"},"data":{"path":"/d"},"seed":1})";

Value job(std::int64_t min, std::int64_t max) {
  return Value::object(
      {{"metadata", Value::object({{"name", "a"}})},
       {"spec", Value::object({{"gpus", Value::object({{"min", min}, {"max", max}})},
                               {"runtime", "builtin"},
                               {"training", json::parse(kTraining).value()},
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

std::string fields_of(const Value& now) {
  std::string fields;
  for (const Violation& found : validate("TrainingJob", nullptr, now)) fields += found.field + " ";
  return fields;
}

// The server fills in what a person leaves out; to say the same is no mistake.
TEST(Validate, AScriptLeavesWhatItSaysItselfAtTheDefaults) {
  Value now = job(1, 2);
  Value& spec = now.at("spec");
  spec.set("runtime", "pytorch");
  spec.set("template",
           json::parse(R"({"spec":{"containers":[{"name":"w","command":["a"]}]}})").value());
  EXPECT_EQ(fields_of(now), "spec.training.model spec.training.data ");
  Value bare = encode(TrainingSpec{});  // as the server stores it
  spec.set("training", bare);
  EXPECT_EQ(fields_of(now), "");
  bare.at("optimizer").at("schedule").set("decaySteps", 10);
  bare.at("batch").set("sequenceLength", 128);
  bare.set("precision", "bf16").set("reduce", "fast");
  bare.at("parallelism").set("tensor", 1);
  spec.set("training", bare);
  EXPECT_EQ(fields_of(now),
            "spec.training.optimizer spec.training.precision spec.training.parallelism "
            "spec.training.reduce spec.training.batch.sequenceLength ");
}

TEST(Rules, OfDefaultsAreWrittenFromTheSchema) {
  for (const Rule& rule : rules())
    if (rule.id == "pytorch-without-optimizer") {
      EXPECT_TRUE(rule.cel.ends_with(R"((self.training.optimizer.name == "adamw" && )"
                                     R"(self.training.optimizer.learningRate == 3e-04 && )"
                                     R"(self.training.optimizer.betas == [0.9,0.95] && )"
                                     R"(self.training.optimizer.epsilon == 1e-08 && )"
                                     R"(self.training.optimizer.weightDecay == 0.1 && )"
                                     R"(self.training.optimizer.gradientClip == 1.0 && )"
                                     R"(self.training.optimizer.schedule.warmupSteps == 0 && )"
                                     R"(self.training.optimizer.schedule.decay == "cosine" && )"
                                     R"(!has(self.training.optimizer.schedule.decaySteps) && )"
                                     R"(self.training.optimizer.schedule.minLearningRate == 0.0))"))
          << rule.cel;
    }
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
