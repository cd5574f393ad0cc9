#include "operator/coordinator/record_store.h"

#include "operator/api/crd.h"
#include "operator/api/resources.h"
#include "operator/kube/memory/memory_client.h"

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

const kube::Key kJob{"default", "gpt"};

// The n-th patch fails before, or after, its effect.
class OneFault : public kube::FaultHook {
 public:
  std::optional<Error> before(const kube::Operation& operation) override {
    if (operation.verb != kube::Verb::kPatch || --before_ != 0) return std::nullopt;
    return Error(Code::kUnavailable, "not sent");
  }
  std::optional<Error> after(const kube::Operation& operation) override {
    if (operation.verb != kube::Verb::kPatch || --after_ != 0) return std::nullopt;
    return Error(Code::kTimeout, "the answer was lost");
  }
  int before_ = 0;
  int after_ = 0;
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
    return record_from(server_.get(api::kTrainingJob, kJob).value()["status"]["membership"]);
  }
  static Record after(const Record& record, std::uint64_t generation) {
    Record next = record;
    next.generation = generation;
    next.phase = "Recovering";
    next.members = {{{"uid-1", 0}, 3, "gpt-1", "n1", "H100"}};
    next.previous = next.members;
    next.fingerprint = "f00d";
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

TEST_F(RecordStoreTest, ANewLeaderFencesTheOldOne) {
  const auto old = store().open(3);
  const auto fresh = store().open(4);
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ(store().swap(*old, after(*old, 1), {}).error().code(), Code::kConflict);
  EXPECT_EQ(stored().generation, 0u);
  EXPECT_EQ(store().open(3).error().code(), Code::kConflict);
  EXPECT_TRUE(store().swap(*fresh, after(*fresh, 1), {}).ok());
}

TEST_F(RecordStoreTest, ALostAnswerIsNoConflict) {
  const auto first = store().open(3);
  fault_.after_ = 1;
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
