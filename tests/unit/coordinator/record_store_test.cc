#include "operator/coordinator/record_store.h"

#include "apiserver/memory/memory_client.h"
#include "operator/api/crd.h"
#include "operator/api/resources.h"

#include <functional>

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

const kube::Key kJob{"default", "gpt"};

// The n-th patch fails before, or after, its effect.
class OneFault : public kube::FaultHook {
 public:
  std::optional<Error> before(const kube::Operation& operation) override {
    if (operation.verb != kube::Verb::kPatch) return std::nullopt;
    if (meanwhile_ && races_-- > 0) meanwhile_();
    if (--before_ != 0) return std::nullopt;
    return error_;
  }
  std::optional<Error> after(const kube::Operation& operation) override {
    if (operation.verb != kube::Verb::kPatch || --after_ != 0) return std::nullopt;
    return Error(Code::kTimeout, "the answer was lost");
  }
  int before_ = 0;
  int after_ = 0;
  int races_ = 0;
  std::function<void()> meanwhile_;  // what another writes just before the next `races_` patches
  Error error_{Code::kUnavailable, "not sent"};
};

class RecordStoreTest : public ::testing::Test {
 protected:
  RecordStoreTest() : server_(executor_.clock()), client_(server_, executor_, &fault_) {
    for (const api::Kind& kind : api::kinds())
      EXPECT_TRUE(server_.create(kube::types::kCustomResourceDefinition, "", api::crd(kind)).ok());
    const auto job = json::parse(R"({"apiVersion":"rubato.dev/v1alpha1","kind":"TrainingJob",
      "metadata":{"name":"gpt","namespace":"default"},"spec":{"runtime":"command",
      "gpus":{"min":1,"max":2},"template":{"spec":{"containers":[{"name":"w","image":"i"}]}}}})");
    EXPECT_TRUE(server_.create(api::kTrainingJob, "default", job.value()).ok());
  }
  RecordStore store() {
    return {executor_, client_, kJob, kube::uid_of(server_.get(api::kTrainingJob, kJob).value())};
  }
  Record stored() {
    return record_from(server_.get(api::kTrainingJob, kJob).value()["status"]["membership"])
        .value();
  }
  static Record after(const Record& record, std::uint64_t generation) {
    Record next = record;
    next.generation = generation;
    next.phase = "Recovering";
    next.members = {{{"uid-1", 0}, 3, "gpt-1", "n1", "H100"}};
    next.previous = next.members;
    next.fingerprint = "f00d";
    next.recomputed_steps = 20;
    return next;
  }

  ThreadExecutor executor_;
  OneFault fault_;
  kube::MemoryServer server_;
  kube::MemoryClient client_;
};

TEST_F(RecordStoreTest, TheFirstRecordIsWrittenAndEverythingComesBack) {
  const auto first = store().open(3);
  ASSERT_TRUE(first.ok()) << first.error().to_string();
  EXPECT_EQ(first->leader, 3u);
  EXPECT_EQ(stored(), *first);
  const Record next = after(*first, 1);
  ASSERT_TRUE(store().swap(*first, next, {}).ok());
  EXPECT_EQ(stored(), next);
}

// More members than a list should hold: the record that a person sees has their number.
TEST_F(RecordStoreTest, ABigJobComesBackToo) {
  const auto first = store().open(3);
  Record big = after(*first, 1);
  big.members.clear();
  for (std::uint32_t i = 0; i < 300; ++i)
    big.members.push_back({{"uid-" + std::to_string(i), i % 8}, i, "gpt-w", "n", "H100"});
  big.previous.assign(big.members.begin(), big.members.begin() + 10);
  ASSERT_TRUE(store().swap(*first, big, {}).ok());
  EXPECT_EQ(stored(), big);
  const json::Value job = server_.get(api::kTrainingJob, kJob).value();
  EXPECT_EQ(job["status"]["membership"]["size"].int_or(0), 300);
  EXPECT_EQ(job["status"]["membership"]["members"].size(), 0u);
  Record small = after(big, 2);
  ASSERT_TRUE(store().swap(big, small, {}).ok());
  EXPECT_EQ(stored(), small);
}

// Unreadable, by whoever wrote there: said, and left as it is.
TEST_F(RecordStoreTest, ADamagedRecordIsNotOverwritten) {
  ASSERT_TRUE(store().open(3).ok());
  const auto patch = json::parse(R"({"status":{"membership":{"packed":"bm8="}}})");
  ASSERT_TRUE(server_
                  .patch(api::kTrainingJob, kJob, kube::PatchType::kMerge, patch.value(),
                         {.subresource = "status"})
                  .ok());
  const auto opened = store().open(4);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().what().find("packed members"), std::string::npos);
}

TEST_F(RecordStoreTest, TheFirstWriteMayRaceWithOthers) {
  int writes = 0;
  fault_.races_ = 3;
  fault_.meanwhile_ = [&] {
    const json::Value patch = json::Value::object(
        {{"status", json::Value::object({{"reason", "r" + std::to_string(++writes)}})}});
    EXPECT_TRUE(server_
                    .patch(api::kTrainingJob, kJob, kube::PatchType::kMerge, patch,
                           {.subresource = "status"})
                    .ok());
  };
  EXPECT_TRUE(store().open(3).ok());
  EXPECT_EQ(writes, 3);
}

// The decision to begin a job is of what the cache showed: that its status has moved since takes
// nothing back, but another spec does.
TEST_F(RecordStoreTest, AJobBeginsThoughItsStatusIsNewerThanTheCache) {
  const json::Value seen = server_.get(api::kTrainingJob, kJob).value();
  UnbegunJob job{.key = kJob,
                 .uid = kube::uid_of(seen),
                 .generation = seen["metadata"]["generation"].int_or(0),
                 .version = kube::resource_version_of(seen),
                 .has_status = seen["status"].is_object()};
  ASSERT_GT(job.generation, 0);
  const auto change = [&](const char* text, const char* subresource) {
    EXPECT_TRUE(server_
                    .patch(api::kTrainingJob, kJob, kube::PatchType::kMerge,
                           json::parse(text).value(), {.subresource = subresource})
                    .ok());
  };
  change(R"({"status":{"reason":"WaitingForGPUs"}})", "status");
  change(R"({"spec":{"gpus":{"max":3}}})", "");
  EXPECT_EQ(write_first_record(client_, job, 3).error().code(), Code::kConflict);
  ++job.generation;
  const auto written = write_first_record(client_, job, 3);
  ASSERT_TRUE(written.ok()) << written.error().to_string();
  EXPECT_EQ(stored().leader, 3u);
  EXPECT_EQ((*written)["status"]["reason"].string_or(""), "WaitingForGPUs");
  EXPECT_EQ(write_first_record(client_, job, 4).error().code(), Code::kConflict) << "it has begun";
}

TEST_F(RecordStoreTest, ANewLeaderFencesTheOldOne) {
  const auto old = store().open(3);
  const auto fresh = store().open(4);
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ(store().swap(*old, after(*old, 1), {}).error().code(), Code::kConflict);
  EXPECT_EQ(stored().generation, 0u);
  EXPECT_EQ(store().open(3).error().code(), Code::kConflict);
  EXPECT_TRUE(store().swap(*fresh, after(*fresh, 1), {}).ok());
}

TEST_F(RecordStoreTest, AnOlderLeaderLearnsWhoIsNewer) {
  ASSERT_TRUE(store().open(4).ok());
  RecordStore older = store();
  EXPECT_FALSE(older.open(3).ok());
  EXPECT_EQ(older.newer_leader(), 4u);
  EXPECT_TRUE(older.open(5).ok());
  EXPECT_FALSE(older.newer_leader());
}

// Deleted and made again under its name, with a record that looks the same.
TEST_F(RecordStoreTest, AnotherJobOfTheSameNameIsNotWritten) {
  RecordStore of_the_old = store();
  const auto first = of_the_old.open(3);
  ASSERT_TRUE(first.ok());
  json::Value job = server_.get(api::kTrainingJob, kJob).value();
  ASSERT_TRUE(server_.remove(api::kTrainingJob, kJob).ok());
  job.at("metadata").erase("uid");
  job.at("metadata").erase("resourceVersion");
  ASSERT_TRUE(server_.create(api::kTrainingJob, "default", job).ok());
  ASSERT_TRUE(store().open(3).ok());
  const Status swapped = of_the_old.swap(*first, after(*first, 1), {});
  ASSERT_FALSE(swapped.ok());
  EXPECT_EQ(swapped.error().code(), Code::kNotFound);
  EXPECT_EQ(stored().generation, 0u);
}

TEST_F(RecordStoreTest, ALostAnswerIsNoConflict) {
  const auto first = store().open(3);
  fault_.after_ = 1;
  EXPECT_TRUE(store().swap(*first, after(*first, 1), {}).ok());
  EXPECT_EQ(stored().generation, 1u);
}

TEST_F(RecordStoreTest, A401PassesAndIsTriedAgain) {
  const auto first = store().open(3);
  fault_.before_ = 1;
  fault_.error_ = Error(Code::kDenied, "Unauthorized");
  fault_.error_.set_reason("Unauthorized");
  EXPECT_TRUE(store().swap(*first, after(*first, 1), {}).ok());
  EXPECT_EQ(stored().generation, 1u);
}

TEST_F(RecordStoreTest, ARequestThatNeverArrivedIsTriedAgain) {
  const auto first = store().open(3);
  fault_.before_ = 1;
  EXPECT_TRUE(store().swap(*first, after(*first, 1), {}).ok());
  EXPECT_EQ(stored().generation, 1u);
}

}  // namespace
}  // namespace rubato::coordinator
