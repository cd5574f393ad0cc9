#include "operator/control/throughput_profiles.h"

#include "apiserver/memory/memory_client.h"
#include "apiserver/memory/memory_server.h"
#include "common/executor.h"
#include "fixtures.h"
#include "operator/api/crd.h"
#include "operator/api/resources.h"

namespace rubato::control {
namespace {

std::string kind_of(const std::string& spec) { return profile_of(parse(spec)); }

TEST(ProfileOf, IsWhatDecidesTheSpeed) {
  const std::string container = R"("image":"i","args":["--lr=1"],"resources":{"limits":{"cpu":1}})";
  const auto with = [&](const std::string& model, const std::string& gpus,
                        const std::string& more = "", const std::string& in = "") {
    return kind_of(R"({"runtime":"builtin","gpus":)" + gpus + R"(,"training":{"model":)" + model +
                   R"(,"batch":{"global":8,"micro":1},"seed":1)" + more +
                   R"(},"template":{"metadata":{"labels":{"team":"a)" + in +
                   R"("}},"spec":{"containers":[{)" + container + "}]}}}");
  };
  const std::string kind = with(R"({"preset":"gpt2-124m"})", R"({"min":1,"max":4,"perPod":1})");
  EXPECT_EQ(kind, "f0c5612abd4f747c") << "it is written into objects: another one is another kind";
  EXPECT_EQ(with(R"({"preset":"gpt2-124m","initFrom":"/w"})", R"({"min":2,"max":8,"perPod":1})",
                 R"(,"stop":{"steps":5})", "b"),
            kind);
  EXPECT_NE(with(R"({"preset":"gpt2-350m"})", R"({"min":1,"max":4,"perPod":1})"), kind);
  EXPECT_NE(with(R"({"preset":"gpt2-124m"})", R"({"min":1,"max":4,"perPod":2})"), kind);
  EXPECT_NE(with(R"({"preset":"gpt2-124m"})", R"({"min":1,"max":4,"perPod":1})",
                 R"(,"precision":"bf16")"),
            kind);
  EXPECT_EQ(kind_of("{}"), kind_of("{}"));
}

TEST(DescribeProfile, SaysWhatIsTrainedAndNoNames) {
  const auto text = [](const std::string& spec) {
    return describe_profile(job(1, 4, "", spec)->job.spec);
  };
  EXPECT_EQ(text(R"("runtime":"builtin")"), "builtin gpt2, 8 x 16 tokens a step, 1 GPU a pod");
  api::TrainingJobSpec script = job(1, 4)->job.spec;
  script.runtime = api::Runtime::kPytorch;
  script.training->model.reset();
  EXPECT_EQ(describe_profile(script), "pytorch, 8 samples a step, 1 GPU a pod");
  script.runtime = api::Runtime::kTorchrun;
  script.training.reset();
  script.gpus.per_pod = 2;
  EXPECT_EQ(describe_profile(script), "torchrun, 2 GPUs a pod");
}

std::string runs_on(int gpus, const std::string& type = "A") {
  return R"("allocation":{"epoch":1,"gpus":)" + std::to_string(gpus) +
         R"(,"pods":[{"name":"job-w0","node":"n1","gpuType":")" + type + R"(","gpus":)" +
         std::to_string(gpus) + "}]},";
}

class Profiles : public ::testing::Test {
 protected:
  Profiles() : server_(executor_.clock()), memory_client_(server_, executor_, nullptr) {
    for (const api::Kind& kind : api::kinds())
      EXPECT_TRUE(server_.create(kube::types::kCustomResourceDefinition, "", api::crd(kind)).ok());
    world_.wall = *parse_rfc3339("2026-11-21T08:00:00Z");
  }
  void add_job(const std::string& status, const std::string& kind = "") {
    JobObject object = *job(1, 4, status);
    if (!kind.empty()) object.profile = kind;
    world_.jobs.push_back(std::make_shared<const JobObject>(object));
  }
  // One pass, with what the cache shows by then.
  void pass() {
    world_.profiles = stored();
    writer_.look_at(world_, now_);
    now_ += kProfilePause;
    world_.wall += kProfilePause;
  }
  std::vector<std::shared_ptr<const ProfileObject>> stored() {
    std::vector<std::shared_ptr<const ProfileObject>> all;
    const auto listed = client_.list(api::kThroughputProfile, "", {});
    EXPECT_TRUE(listed.ok());
    for (const json::Value& item : listed->items)
      all.push_back(std::make_shared<const ProfileObject>(ProfileObject::decode(item).value()));
    return all;
  }
  // "A4 90" of the profile of the common kind.
  std::vector<std::string> points(std::size_t of = 0) {
    std::vector<std::string> said;
    const auto all = stored();
    if (of >= all.size()) return said;
    for (const auto& point : all[of]->profile.spec.points)
      said.push_back(point.gpu_type + std::to_string(point.gpus) + " " +
                     std::to_string(std::llround(point.tokens_per_second)));
    return said;
  }
  using Said = std::vector<std::string>;

  ThreadExecutor executor_;
  kube::MemoryServer server_;
  kube::MemoryClient memory_client_;
  kube::Client& client_ = memory_client_;
  Metrics metrics_;
  ProfileWriter writer_{client_, metrics_};
  World world_;
  MonoTime now_{};
};

TEST_F(Profiles, WhatAJobMeasuredIsKeptWhenItIsGone) {
  pass();
  EXPECT_TRUE(stored().empty());
  add_job(runs_on(2) + measured(2, 100));
  pass();
  ASSERT_EQ(stored().size(), 1u);
  const auto kept = stored()[0];
  EXPECT_EQ(kept->meta.name, world_.jobs[0]->profile);
  EXPECT_EQ(kept->profile.spec.model, kept->meta.name);
  EXPECT_EQ(kept->profile.spec.description, "builtin gpt2, 8 x 16 tokens a step, 1 GPU a pod");
  EXPECT_EQ(points(), Said{"A2 100"});
  world_.jobs.clear();
  pass();
  add_job(measured(1, 60));
  pass();
  EXPECT_EQ(points(), (Said{"A2 100", "A1 60"}));
}

TEST_F(Profiles, ASpeedIsWrittenAnewWhenItChangedAndSomebodyRunsAtIt) {
  add_job(runs_on(2) + measured(2, 100));
  pass();
  const std::string before = stored()[0]->meta.resource_version;
  world_.jobs.clear();
  add_job(runs_on(2) + measured(2, 105));
  pass();
  EXPECT_EQ(stored()[0]->meta.resource_version, before) << "hardly another";
  world_.jobs.clear();
  add_job(runs_on(1) + measured(2, 10));
  add_job(runs_on(2, "B") + measured(2, 20));
  pass();
  EXPECT_EQ(points(), Said{"A2 100"}) << "of jobs that run on something else now";
  add_job(runs_on(2) + measured(2, 110));
  add_job(runs_on(2) + measured(2, 130));
  pass();
  EXPECT_EQ(points(), Said{"A2 120"}) << "their mean";
}

TEST_F(Profiles, OneIsNotWrittenOverWhatAPersonJustWrote) {
  add_job(runs_on(2) + measured(2, 100));
  pass();
  world_.profiles = stored();  // the cache is behind from here on
  const kube::Key key{"", world_.profiles[0]->meta.name};
  ASSERT_TRUE(client_
                  .patch(api::kThroughputProfile, key, kube::PatchType::kMerge,
                         parse(R"({"spec":{"description":"mine"}})"))
                  .ok());
  world_.jobs.clear();
  add_job(runs_on(2) + measured(2, 200));
  writer_.look_at(world_, now_);
  EXPECT_EQ(points(), Said{"A2 100"});
  now_ += kProfilePause;
  pass();
  EXPECT_EQ(points(), Said{"A2 200"});
  EXPECT_EQ(stored()[0]->profile.spec.description, "mine");
}

TEST_F(Profiles, OfManyKindsSomeAreWrittenInEachPassAndAllInTheEnd) {
  constexpr int kKinds = 2 * kProfileWritesMost + 3;
  for (int i = 0; i < kKinds; ++i)
    add_job(runs_on(2) + measured(2, 100 + i), "kind-" + std::to_string(100 + i));
  pass();
  EXPECT_EQ(stored().size(), static_cast<std::size_t>(kProfileWritesMost));
  pass();
  pass();
  EXPECT_EQ(stored().size(), static_cast<std::size_t>(kKinds));
  const auto rounds = [this] {
    std::size_t bytes = 0;
    for (const auto& one : stored()) bytes += one->meta.resource_version.size();
    return bytes;
  };
  const std::size_t before = rounds();
  pass();
  EXPECT_EQ(rounds(), before) << "nothing is left to write";
}

TEST_F(Profiles, TheOldestPointsLeaveAFullProfile) {
  JobObject object = *job(1, 4, measured(1, 10));
  auto& by_type = object.job.status.performance->by_type;
  by_type.clear();
  const auto most = static_cast<std::int32_t>(api::kThroughputPointsMost);
  for (std::int32_t gpus = 1; gpus <= most; ++gpus) by_type.push_back({"A", gpus, 10.0});
  world_.jobs = {std::make_shared<const JobObject>(object)};
  pass();
  EXPECT_EQ(points().size(), api::kThroughputPointsMost);
  by_type = {{"B", 1, 7}};
  world_.jobs = {std::make_shared<const JobObject>(object)};
  pass();
  EXPECT_EQ(points().size(), api::kThroughputPointsMost);
  EXPECT_EQ(points().front(), "A2 10");
  EXPECT_EQ(points().back(), "B1 7");
}

// It is not written again in each round, one point in place of another.
TEST_F(Profiles, OfMorePointsThanAProfileHoldsTheFirstAreKept) {
  JobObject object = *job(1, 4, measured(1, 10));
  auto& by_type = object.job.status.performance->by_type;
  by_type.clear();
  for (std::int32_t gpus = 1; gpus <= 150; ++gpus) by_type.push_back({"A", gpus, 10.0});
  world_.jobs = {std::make_shared<const JobObject>(object)};
  pass();
  EXPECT_EQ(points().size(), api::kThroughputPointsMost);
  const std::string before = stored()[0]->meta.resource_version;
  pass();
  EXPECT_EQ(stored()[0]->meta.resource_version, before);
}

// Nobody's is taken away for another's; a metric says how many go without.
TEST_F(Profiles, NoMoreThanSoManyAreMade) {
  for (std::size_t i = 0; i + 1 < kProfilesMost; ++i)
    ASSERT_TRUE(client_
                    .create(api::kThroughputProfile, "",
                            parse(R"({"apiVersion":"rubato.dev/v1alpha1","kind":"ThroughputProfile",
                                "metadata":{"name":"p)" +
                                  std::to_string(i) + R"("},"spec":{"model":"m"}})"))
                    .ok());
  add_job(runs_on(2) + measured(2, 100), "one");
  add_job(runs_on(2) + measured(2, 100), "two");
  pass();
  pass();
  EXPECT_EQ(stored().size(), kProfilesMost);
  EXPECT_NE(metrics_.expose().find("rubato_throughput_profiles_left_out 1"), std::string::npos);
}

}  // namespace
}  // namespace rubato::control
