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

TEST(TrainingConfig, SaysWhatIsWrong) {
  const auto without = [](const std::string& part, const std::string& instead) {
    std::string text = kGood;
    text.replace(text.find(part), part.size(), instead);
    return parse_training(text);
  };
  EXPECT_FALSE(without("\"micro\": 2", "\"micro\": 3").ok());
  EXPECT_FALSE(without("/data/t.bin", "").ok());
  EXPECT_FALSE(without("\"steps\": 50", "\"steps\": 0").ok());
  EXPECT_FALSE(without("\"exact\"", "\"fast\"").ok());
  EXPECT_FALSE(without("\"heads\": 2", "\"heads\": 3").ok());
  EXPECT_FALSE(parse_training("{").ok());
}

}  // namespace
}  // namespace rubato::worker
