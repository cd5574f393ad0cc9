#include "operator/control/job_training.h"

#include "tests/unit/control/fixtures.h"

namespace rubato::control {
namespace {

coordinator::Wish wish_of(const api::TrainingJob& job) {
  coordinator::Wish wish;
  put_training(job, wish);
  return wish;
}

api::TrainingJob of_script() {
  api::TrainingJob made = job(2, 4)->job;
  made.spec.runtime = api::Runtime::kPytorch;
  made.spec.training->model.reset();
  made.spec.training->data.reset();
  return made;
}

TEST(JobTraining, WorkersAreToldTheNumbersAndTheEndOfTheDecay) {
  api::TrainingJob made = job(2, 4)->job;
  made.status.decay_steps = 70;
  const coordinator::Wish wish = wish_of(made);
  EXPECT_FALSE(wish.is_stateless);
  EXPECT_EQ(wish.stop_steps, 100u);
  EXPECT_EQ(wish.micro_batches, 8u);
  const json::Value told = parse(wish.training);
  EXPECT_EQ(told["model"]["vocab"].int_or(0), 257);
  EXPECT_EQ(told["optimizer"]["schedule"]["decaySteps"].int_or(0), 70);
}

TEST(JobTraining, WhatCanBeReadOfASpecMayBeEnoughToLeadBy) {
  api::TrainingJob made = job(2, 4)->job;
  EXPECT_TRUE(can_be_led(made));
  made.unreadable = "spec: must be an object";
  EXPECT_FALSE(can_be_led(made));
  made.unreadable_members = {"objective", "template"};
  EXPECT_TRUE(can_be_led(made));
  for (const char* name : {"runtime", "gpus", "training", "gracePeriodSeconds"}) {
    made.unreadable_members = {"objective", name};
    EXPECT_FALSE(can_be_led(made)) << name;
  }
}

// Its state is ours to move and to keep, as the builtin trainer's is.
TEST(JobTraining, AScriptHasStateAndIsToldWhatItDoesNotSayItself) {
  api::TrainingJob made = of_script();
  made.spec.training->seed = 7;
  made.spec.training->evaluate_every = 50;
  made.spec.training->checkpoint.path = "/ckpt";
  const coordinator::Wish wish = wish_of(made);
  EXPECT_FALSE(wish.is_stateless);
  EXPECT_EQ(wish.stop_steps, 100u);
  EXPECT_EQ(wish.micro_batches, 8u);
  EXPECT_EQ(wish.training,
            R"({"batch":{"global":8,"micro":1},"stop":{"steps":100},"seed":7,"evaluateEvery":50,)"
            R"("checkpoint":{"every":500,"path":"/ckpt","keep":3,"giveUpAfter":1800}})");
}

TEST(JobTraining, AProgramIsAsManyProcessesAsItMayHold) {
  api::TrainingJob made = job(2, 4)->job;
  made.spec.runtime = api::Runtime::kTorchrun;
  made.spec.training.reset();
  const coordinator::Wish wish = wish_of(made);
  EXPECT_TRUE(wish.is_stateless);
  EXPECT_EQ(wish.training, "");
  EXPECT_EQ(wish.micro_batches, 4u);
}

TEST(JobTraining, WhatAStepReadsIsKnownBeforehandOfTheBuiltinTrainerAlone) {
  EXPECT_EQ(tokens_of_a_step(job(2, 4)->job, 0, 0), 128);
  EXPECT_EQ(tokens_of_a_step(of_script(), 0, 0), 0);
  EXPECT_EQ(tokens_of_a_step(of_script(), 40, 40 * 512), 512);
}

}  // namespace
}  // namespace rubato::control
