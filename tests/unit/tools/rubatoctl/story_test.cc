#include "tools/rubatoctl/demo/story.h"

#include "common/yaml.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

using json::Value;

// A shipped example, which the tests run beside.
DemoStory story(std::int64_t steps = 0, const std::string& name = "gpt-kjv") {
  std::ostringstream text;
  text << std::ifstream("examples/" + name + ".yaml").rdbuf();
  auto manifests = yaml::parse_all(text.str());
  EXPECT_TRUE(manifests.ok());
  auto made = DemoStory::make(std::move(manifests).value(), steps);
  EXPECT_TRUE(made.ok());
  return std::move(made).value();
}

const Value& job_of(const std::vector<Value>& manifests) {
  for (const Value& manifest : manifests)
    if (manifest["kind"].string_or("") == "TrainingJob") return manifest;
  static const Value kNone;
  return kNone;
}

TEST(DemoStory, ReadsTheExample) {
  const DemoJob job = story().job();
  EXPECT_EQ(job.name, "gpt-kjv");
  EXPECT_EQ(job.data_claim, "kjv-data");
  EXPECT_EQ(job.data_file, "kjv.tokens");
  EXPECT_EQ(job.checkpoint_claim, "kjv-checkpoints");
  EXPECT_EQ(job.tokens_per_step, 16 * 128);
  EXPECT_EQ(story(77).job().steps, 77);
}

Value but_its_end(Value training) {
  training.at("stop").set("steps", nullptr);
  return training;
}

TEST(DemoStory, TheRunsDifferInNothingThatTrains) {
  DemoStory both = story(120);
  const auto disturbed_manifests = both.disturbed("/bin/testing/rubato-worker");
  const auto alone_manifests = both.undisturbed();
  const Value& disturbed = job_of(disturbed_manifests);
  const Value& alone = job_of(alone_manifests);
  EXPECT_EQ(but_its_end(disturbed["spec"]["training"]), but_its_end(alone["spec"]["training"]));
  EXPECT_GT(disturbed["spec"]["training"]["stop"]["steps"].int_or(0), 1000);
  EXPECT_EQ(alone["spec"]["training"]["stop"]["steps"].int_or(0), 120);
  EXPECT_EQ(alone["spec"]["training"]["optimizer"]["schedule"]["decaySteps"].int_or(0), 120);
  both.set_steps(150);
  const auto longer = both.undisturbed();
  EXPECT_EQ(job_of(longer)["spec"]["training"]["stop"]["steps"].int_or(0), 150);
  EXPECT_EQ(alone["spec"]["gpus"]["max"].int_or(0), 1);
  EXPECT_EQ(alone["metadata"]["name"].string_or(""), "gpt-kjv-alone");
  EXPECT_EQ(alone["spec"]["template"]["spec"]["volumes"][1]["persistentVolumeClaim"]["claimName"]
                .string_or(""),
            "kjv-checkpoints-alone");
  const Value& env = disturbed["spec"]["template"]["spec"]["containers"][0]["env"];
  EXPECT_EQ(env[1]["name"].string_or(""), "RUBATO_WORKER");
  EXPECT_EQ(env[1]["value"].string_or(""), "/bin/testing/rubato-worker");
  EXPECT_EQ(env[2]["name"].string_or(""), "RUBATO_FAULT_FILE");
  EXPECT_EQ(env[2]["value"].string_or(""), "/ckpt/faults/$(DEMO_NODE)");
  EXPECT_TRUE(
      job_of(both.disturbed(""))["spec"]["template"]["spec"]["containers"][0]["env"].is_null());
  EXPECT_TRUE(alone["spec"]["template"]["spec"]["containers"][0]["env"].is_null());
}

std::string variable(const Value& job, const std::string& name) {
  std::string found;
  for (const Value& each : job["spec"]["template"]["spec"]["containers"][0]["env"].items())
    if (each["name"].string_view_or("") == name) found += each["value"].string_or("");
  return found;
}

TEST(DemoStory, APyTorchScriptLiesBesideItsTextAndItsCheckpoints) {
  DemoStory both = story(0, "pytorch-kjv");
  both.set_python({"/venv/bin/python", "/package", "/lib/plain.so"});
  EXPECT_EQ(both.job().data_claim, "pytorch-work");
  EXPECT_EQ(both.job().data_file, "text");
  EXPECT_EQ(both.job().script_file, "train.py");
  EXPECT_EQ(both.job().checkpoint_folder, "states");
  EXPECT_EQ(both.undisturbed_job().data_claim, "pytorch-work-alone");
  const auto disturbed_manifests = both.disturbed("/lib/testing.so");
  const auto alone_manifests = both.undisturbed();
  const Value& disturbed = job_of(disturbed_manifests);
  const Value& alone = job_of(alone_manifests);
  EXPECT_EQ(but_its_end(disturbed["spec"]["training"]), but_its_end(alone["spec"]["training"]));
  EXPECT_GT(disturbed["spec"]["training"]["stop"]["steps"].int_or(0), 1000);
  EXPECT_EQ(disturbed["spec"]["gpus"]["min"].int_or(0), 2);
  EXPECT_EQ(variable(disturbed, "RUBATO_LIBRARY"), "/lib/testing.so");
  EXPECT_EQ(variable(disturbed, "RUBATO_FAULT_FILE"), "/job/states/faults/$(DEMO_NODE)");
  EXPECT_EQ(variable(alone, "RUBATO_LIBRARY"), "/lib/plain.so");
  EXPECT_EQ(variable(alone, "PYTHONPATH"), "/package");
  EXPECT_EQ(alone["spec"]["template"]["spec"]["containers"][0]["command"][0].string_or(""),
            "/venv/bin/python");
}

TEST(DemoStory, SaysWhatItCannotUse) {
  EXPECT_FALSE(DemoStory::make({}, 0).ok());
  auto manifests = story().disturbed("");
  for (Value& manifest : manifests)
    if (manifest["kind"].string_or("") == "TrainingJob")
      manifest.at("spec").at("training").at("data").set("path", "/elsewhere/x");
  EXPECT_EQ(DemoStory::make(manifests, 0).error().what(),
            "/elsewhere/x is on no volume of a PersistentVolumeClaim");
}

}  // namespace
}  // namespace rubato::ctl
