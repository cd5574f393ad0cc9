#include "operator/api/codec.h"

#include "operator/api/resources.h"
#include "operator/api/scheduling_policy.h"
#include "operator/api/throughput_profile.h"
#include "operator/api/training_job.h"
#include "operator/api/training_queue.h"

#include <gtest/gtest.h>

namespace rubato::api {
namespace {

using json::Value;

Value parsed(const std::string& text) {
  auto value = json::parse(text);
  CHECK(value.ok());
  return *value;
}

const char* const kJob = R"({
  "apiVersion": "rubato.dev/v1alpha1", "kind": "TrainingJob",
  "metadata": {"name": "gpt", "namespace": "a", "uid": "u1", "generation": 3,
               "labels": {"team": "x"}, "finalizers": ["rubato.dev/teardown"],
               "creationTimestamp": "2026-11-21T07:00:00Z"},
  "spec": {
    "gpus": {"min": 2, "max": 4, "shape": "powersOfTwo"},
    "objective": {"deadline": "2026-12-01T08:00:00Z"},
    "training": {"model": {"preset": "gpt2-demo"}, "data": {"path": "/d"},
                 "batch": {"global": 16, "micro": 2}, "stop": {"steps": 10},
                 "parallelism": {"tensor": 2}},
    "template": {"spec": {"containers": [{"name": "worker", "unheard": [1, 2.5]}]}},
    "fieldOfTomorrow": true},
  "status": {"state": "Running", "conditions": [
     {"type": "Running", "status": "True", "reason": "Training",
      "lastTransitionTime": "2026-11-21T07:01:00Z"}]}})";

TEST(Codec, ReadsAJobAndFillsDefaults) {
  const auto job = decode_training_job(parsed(kJob));
  ASSERT_TRUE(job.ok()) << job.error().to_string();
  EXPECT_EQ(job->meta.name, "gpt");
  EXPECT_EQ(job->meta.generation, 3);
  EXPECT_TRUE(job->meta.has_finalizer(kFinalizer));
  EXPECT_FALSE(job->meta.is_deleting());
  EXPECT_EQ(job->spec.gpus.max, 4);
  EXPECT_EQ(job->spec.gpus.per_pod, 1);
  EXPECT_EQ(job->spec.gpus.shape, GpuShape::kPowersOfTwo);
  EXPECT_EQ(job->spec.queue, "default");
  EXPECT_EQ(job->spec.grace_period_seconds, 60);
  EXPECT_EQ(to_rfc3339(*job->spec.objective.deadline), "2026-12-01T08:00:00Z");
  ASSERT_TRUE(job->spec.training.has_value());
  EXPECT_EQ(job->spec.training->batch.micro_batches(), 8);
  EXPECT_EQ(job->spec.training->parallelism.tensor.degree, 2);
  EXPECT_EQ(job->spec.training->parallelism.pipeline.degree, std::nullopt);
  EXPECT_EQ(job->spec.training->reduce, Reduce::kExact);
  EXPECT_TRUE(is_true(job->status.conditions, condition::kRunning));
}

TEST(Codec, AScriptsTrainingHasNoModel) {
  const auto spec = decode<TrainingJobSpec>(parsed(
      R"({"runtime": "pytorch", "training": {"batch": {"global": 8, "micro": 1}, "stop": {"steps": 9}}})"));
  ASSERT_TRUE(spec.ok()) << spec.error().to_string();
  EXPECT_EQ(spec->runtime, Runtime::kPytorch);
  EXPECT_FALSE(spec->training->model.has_value());
  EXPECT_FALSE(spec->training->data.has_value());
  EXPECT_FALSE(encode(*spec->training).has("model"));
}

TEST(Codec, EncodedAndDecodedAgainIsEqual) {
  const auto job = decode_training_job(parsed(kJob));
  ASSERT_TRUE(job.ok());
  const auto spec = decode<TrainingJobSpec>(encode(job->spec));
  ASSERT_TRUE(spec.ok()) << spec.error().to_string();
  EXPECT_EQ(*spec, job->spec);
  const auto status = decode<TrainingJobStatus>(encode(job->status));
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(*status, job->status);
  // The template is kept as it is, what we have never heard of included.
  EXPECT_EQ(encode(job->spec)["template"], parsed(kJob)["spec"]["template"]);
}

TEST(Codec, ErrorsNameThePath) {
  const auto error_of = [](const std::string& spec) {
    return decode<TrainingJobSpec>(parsed(spec), "spec").error();
  };
  EXPECT_EQ(error_of(R"({"gpus": {"min": "two"}})").what(), "spec.gpus.min: must be an integer");
  EXPECT_EQ(error_of(R"({"gpus": {"min": 9223372036854775808}})").what(),
            "spec.gpus.min: must be a 32-bit integer");
  EXPECT_EQ(error_of(R"({"training": {"seed": 9223372036854775808}})").what(),
            "spec.training.seed: must be a 64-bit integer");
  EXPECT_EQ(error_of(R"({"gpus": {"min": 3000000000}})").what(),
            "spec.gpus.min: must be a 32-bit integer");
  EXPECT_EQ(error_of(R"({"gpus": []})").what(), "spec.gpus: must be an object");
  EXPECT_EQ(error_of(R"({"runtime": "pascal"})").what(), "spec.runtime: unknown word \"pascal\"");
  EXPECT_EQ(error_of(R"({"accelerators": {"allow": ["a", 1]}})").what(),
            "spec.accelerators.allow[1]: must be a string");
  EXPECT_EQ(error_of(R"({"suspend": 1})").code(), Code::kInvalid);
  EXPECT_FALSE(decode<TrainingJobSpec>(parsed(R"({"objective": {"deadline": "soon"}})")).ok());
}

TEST(Codec, AJobIsThereThoughItsSpecCannotBeRead) {
  Value object = parsed(kJob);
  object.at("spec").set("suspend", true);
  object.at("spec").at("objective").set("deadline", "2026-11-21T07:38:29+99:99");
  object.at("spec").set("runtime", "pascal");
  const auto job = decode_training_job(object);
  ASSERT_TRUE(job.ok()) << job.error().to_string();
  EXPECT_EQ(job->unreadable.find("spec.objective.deadline: "), 0u) << job->unreadable;
  EXPECT_EQ(job->unreadable_members, (std::set<std::string>{"objective", "runtime"}));
  EXPECT_TRUE(job->spec.suspend);
  EXPECT_EQ(job->spec.gpus.max, 4);
  EXPECT_EQ(job->spec.objective.deadline, std::nullopt);
  EXPECT_EQ(job->spec.runtime, Runtime::kBuiltin);
  EXPECT_TRUE(job->meta.has_finalizer(kFinalizer));
  EXPECT_TRUE(is_true(job->status.conditions, condition::kRunning));
  EXPECT_EQ(decode_training_job(parsed(kJob))->unreadable, "");
  object.set("status", Value::object({{"state", 1}}));
  EXPECT_EQ(decode_training_job(object).error().what(), "status.state: must be a string");
}

TEST(Codec, ADeadlineFarAwayIsTheLastInstantThereIs) {
  const auto spec =
      decode<TrainingJobSpec>(parsed(R"({"objective": {"deadline": "9999-12-31T23:59:59Z"}})"));
  ASSERT_TRUE(spec.ok()) << spec.error().to_string();
  EXPECT_EQ(*spec->objective.deadline, kLastTime);
}

TEST(Codec, NullReadsAsMissing) {
  const auto spec = decode<TrainingJobSpec>(parsed(R"({"queue": null, "training": null})"));
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(*spec, TrainingJobSpec{});
}

TEST(Codec, WritesNumbersAlwaysAndLeavesOutWhatIsUnset) {
  const Value progress = encode(Progress{});
  EXPECT_TRUE(progress.has("step"));
  EXPECT_FALSE(progress.has("loss"));
  const Value allocation = encode(Allocation{});
  EXPECT_TRUE(allocation["pods"].is_array());  // required
  EXPECT_FALSE(allocation.has("since"));
  EXPECT_EQ(json::dump(encode(Membership{})),
            R"({"generation":0,"leader":0,"phase":"","members":[],"size":0,"seq":0,"step":0})");
}

TEST(Codec, AStatusUpdateTouchesOnlyWhatChanged) {
  TrainingJobStatus seen;
  seen.state = "Queued";
  seen.progress = Progress{};
  seen.parked_since = WallTime{};
  TrainingJobStatus wanted = seen;
  wanted.state = "Running";
  wanted.progress->step = 5;
  wanted.parked_since.reset();
  const Value patch = diff(encode(seen), encode(wanted));
  EXPECT_EQ(json::dump(patch), R"({"state":"Running","progress":{"step":5},"parkedSince":null})");

  Value stored = encode(seen);
  stored.set("fieldOfTomorrow", 1);
  json::merge_patch(stored, patch);
  EXPECT_EQ(stored["fieldOfTomorrow"], Value(1));
  EXPECT_EQ(*decode<TrainingJobStatus>(stored), wanted);
  EXPECT_EQ(diff(encode(wanted), encode(wanted)).size(), 0u);
}

TEST(Codec, AServerMayWriteANumberInAnotherForm) {
  EXPECT_EQ(diff(parsed(R"({"a": 3, "b": [{"c": 0}]})"), parsed(R"({"a": 3.0, "b": [{"c": 0.0}]})"))
                .size(),
            0u);
  EXPECT_EQ(diff(parsed(R"({"a": 9007199254740993})"), parsed(R"({"a": 9007199254740992})")).size(),
            1u);
}

TEST(Codec, ClusterKinds) {
  const auto queue = decode_training_queue(
      parsed(R"({"metadata": {"name": "q"}, "spec": {"quotas": [{"gpuType": "*", "limit": 8}]}})"));
  ASSERT_TRUE(queue.ok());
  EXPECT_TRUE(queue->spec.borrowing);
  EXPECT_EQ(queue->spec.quotas.at(0).limit, 8);
  const auto policy = decode_scheduling_policy(
      parsed(R"({"metadata": {"name": "default"}, "spec": {"parameters": {"a": 1, "b": 0.5}}})"));
  ASSERT_TRUE(policy.ok());
  EXPECT_EQ(policy->spec.parameters.at("b"), 0.5);
  EXPECT_EQ(policy->spec.round_seconds, 10);
  const auto profile = decode_throughput_profile(
      parsed(R"({"spec": {"model": "m", "points": [{"gpuType": "t", "gpus": 2}]}})"));
  ASSERT_TRUE(profile.ok());
  EXPECT_EQ(profile->spec.points.size(), 1u);
}

TEST(ExplicitModel, PresetOrSizes) {
  ModelSpec model;
  EXPECT_FALSE(explicit_model(model).ok());
  model.preset = "gpt2-124m";
  model.init_from = "/m";
  const ModelSpec gpt2 = *explicit_model(model);
  EXPECT_EQ(dump(encode(gpt2)),
            R"({"family":"gpt2","layers":12,"hidden":768,"heads":12,"vocab":50257,)"
            R"("initFrom":"/m"})");
  EXPECT_EQ(flops_per_token(gpt2, 1024), 6.0 * 123532032 + 12.0 * 12 * 768 * 1024);
  model.preset = "gpt9";
  EXPECT_EQ(explicit_model(model).error().code(), Code::kInvalid);
  model = {};
  model.layers = 4;
  model.hidden = 192;
  model.heads = 4;
  EXPECT_EQ(explicit_model(model)->vocab, 257);
  EXPECT_FALSE(explicit_model(model)->kv_heads.has_value());
}

TEST(ExplicitModel, LlamasNumbersAreWrittenOut) {
  ModelSpec model;
  model.family = ModelFamily::kLlama;
  model.preset = "llama-3.2-1b";
  EXPECT_EQ(dump(encode(*explicit_model(model))),
            R"({"family":"llama","layers":16,"hidden":2048,"heads":32,"vocab":128256,"kvHeads":8,)"
            R"("mlpHidden":8192,"ropeTheta":5e+05,"ropeScaling":{"factor":32.0,)"
            R"("lowFrequencyFactor":1.0,"highFrequencyFactor":4.0,"originalLength":8192},)"
            R"("normEpsilon":1e-05,"tieEmbeddings":true})");
  model = {};
  model.family = ModelFamily::kLlama;
  model.layers = 2;
  model.hidden = 64;
  model.heads = 4;
  EXPECT_FALSE(explicit_model(model).ok());
  model.mlp_hidden = 96;
  const ModelSpec all = *explicit_model(model);
  EXPECT_EQ(all.kv_heads, 4);
  EXPECT_EQ(all.rope_theta, 10000);
  EXPECT_EQ(all.norm_epsilon, 1e-5);
  EXPECT_EQ(all.tie_embeddings, false);
  EXPECT_EQ(flops_per_token(all, 32),
            6.0 * (2 * (4 * 64 * 64 + 3 * 64 * 96) + 257 * 64) + 12.0 * 2 * 64 * 32);
}

TEST(Names, LongestJobLeavesRoomForItsPods) {
  const std::string job(kMaxJobName, 'j');
  EXPECT_LE(pod_name(job, 9'999'999'999'999).size(), 63u);
  EXPECT_LE(secret_name(job).size(), 63u);
  EXPECT_EQ(pod_name("gpt", 7), "gpt-w7");
}

}  // namespace
}  // namespace rubato::api
