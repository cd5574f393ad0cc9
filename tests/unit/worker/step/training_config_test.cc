#include "worker/step/training_config.h"

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

const std::string kGood = R"({
  "model": {"family": "gpt2", "layers": 2, "hidden": 64, "heads": 2, "vocab": 256},
  "data": {"path": "/data/t.bin", "validationFraction": 0.1},
  "batch": {"global": 16, "micro": 2, "sequenceLength": 32},
  "optimizer": {"name": "adamw", "learningRate": 0.001, "betas": [0.8, 0.9],
                "schedule": {"warmupSteps": 5, "decay": "cosine", "minLearningRate": 0.0001}},
  "stop": {"steps": 50}, "seed": 7, "evaluateEvery": 10, "reduce": "exact",
  "checkpoint": {"every": 20, "path": "/ckpt", "keep": 2}})";

TEST(TrainingConfig, ReadsTheSpec) {
  const auto config = parse_training(kGood);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config.value().model.hidden, 64);
  EXPECT_EQ(config.value().model.sequence_length, 32);
  EXPECT_EQ(config.value().sampler.global_batch, 16);
  EXPECT_EQ(config.value().sampler.seed, 7u);
  EXPECT_EQ(config.value().optimizer.beta1, 0.8);
  EXPECT_EQ(config.value().optimizer.decay_steps, 50);  // unset: where training stops
  EXPECT_EQ(config.value().checkpoint_keep, 2);
}

Result<TrainingConfig> without(const std::string& part, const std::string& instead) {
  std::string text = kGood;
  text.replace(text.find(part), part.size(), instead);
  return parse_training(text);
}

// A field that is passed over is a training that nobody asked for.
TEST(TrainingConfig, KnowsEachFieldOrRefusesIt) {
  const auto why = [](const Result<TrainingConfig>& config) {
    return config.ok() ? "accepted" : std::string(config.error().what());
  };
  EXPECT_EQ(why(without("\"seed\": 7", "\"seeds\": 7")),
            "this worker does not know training.seeds");
  EXPECT_EQ(why(without("\"warmupSteps\"", "\"warmup\"")),
            "this worker does not know training.optimizer.schedule.warmup");
  EXPECT_EQ(why(without("\"micro\": 2", "\"micro\": \"2\"")),
            "training.batch.micro has the wrong type");
  EXPECT_EQ(why(without("[0.8, 0.9]", "[0.8, \"0.9\"]")),
            "training.optimizer.betas has the wrong type");
  EXPECT_EQ(why(without("\"seed\": 7", "\"precision\": \"bf16\"")),
            "training.precision \"bf16\" is not possible here; it must be f32");
  EXPECT_EQ(why(without("\"adamw\"", "\"sgd\"")),
            "training.optimizer.name \"sgd\" is not possible here; it must be adamw");
}

// As the API server has them (common/training_limits.h).
TEST(TrainingConfig, BoundsAreThoseOfTheApi) {
  EXPECT_TRUE(without("0.001,", "100,").ok());
  EXPECT_FALSE(without("0.001,", "100.1,").ok());
  EXPECT_TRUE(without("0.001,", "0.001, \"weightDecay\": 1,").ok());
  EXPECT_FALSE(without("0.001,", "0.001, \"weightDecay\": 1.1,").ok());
  EXPECT_FALSE(without("0.001,", "0.001, \"epsilon\": 1.1,").ok());
}

TEST(TrainingConfig, SaysWhatIsWrong) {
  EXPECT_FALSE(without("\"micro\": 2", "\"micro\": 3").ok());
  EXPECT_FALSE(without("/data/t.bin", "").ok());
  EXPECT_FALSE(without("\"steps\": 50", "\"steps\": 0").ok());
  EXPECT_FALSE(without("\"exact\"", "\"fast\"").ok());
  EXPECT_FALSE(without("\"heads\": 2", "\"heads\": 3").ok());
  EXPECT_FALSE(parse_training("{").ok());
}

}  // namespace
}  // namespace rubato::worker
