#include "operator/coordinator/bounds.h"

#include <string>

#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

constexpr std::uint32_t kMicroBatches = 8;
constexpr int kMany = 100'000;

TEST(Bounds, WhatIsDroppedTakesNoMemory) {
  wire::WorkerStanding said;
  said.mutable_id()->set_pod_uid("uid-0");
  for (int i = 0; i < kMany; ++i) said.add_held();
  for (std::uint32_t i = 0; i < kMany; ++i) said.mutable_last()->add_diverged(i);
  said.set_fingerprint(std::string(kMany, 'f'));
  said.mutable_listen()->set_host(std::string(kMany, 'h'));
  said.GetReflection()->MutableUnknownFields(&said)->AddLengthDelimited(99,
                                                                        std::string(kMany, 'u'));
  said.set_seq(7);
  const wire::WorkerStanding status = bounded(said, kMicroBatches);
  EXPECT_EQ(status.id().pod_uid(), "uid-0");
  EXPECT_EQ(status.seq(), 7u);
  EXPECT_EQ(status.held_size(), 0);
  EXPECT_LT(status.SpaceUsedLong(), 4096u);
}

TEST(Bounds, WhatAJobCanHaveStays) {
  wire::WorkerStanding said;
  for (std::uint32_t i = 0; i < kMicroBatches; i += 2) {
    said.add_held()->set_begin(i);
    said.mutable_last()->add_diverged(i);
  }
  const wire::WorkerStanding status = bounded(said, kMicroBatches);
  EXPECT_EQ(status.held_size(), said.held_size());
  EXPECT_EQ(status.last().diverged_size(), said.last().diverged_size());
}

TEST(Bounds, AFrameOfManyEmptyWorkersIsNotParsed) {
  wire::AgentMessage beat;
  for (std::uint32_t i = 0; i < kSlotsMax; ++i) beat.mutable_heartbeat()->add_workers();
  const std::string honest = beat.SerializeAsString();
  EXPECT_TRUE(has_few_parts(honest));
  // One heartbeat after the other is one of all their workers.
  EXPECT_FALSE(has_few_parts(honest + honest + honest + honest + honest));
  wire::AgentMessage hello;
  for (int i = 0; i < kMany; ++i) hello.mutable_hello()->add_workers();
  EXPECT_FALSE(has_few_parts(hello.SerializeAsString()));
}

TEST(Bounds, TheLongestHonestFrameIsParsed) {
  wire::AgentMessage message;
  message.mutable_worker()->mutable_standing()->set_fingerprint("f00d");
  for (int i = 0; i < 4000; ++i) {  // whom it reaches
    wire::WorkerId& id = *message.mutable_worker()->mutable_reach()->add_reached();
    id.set_pod_uid("11111111-0000-0000-0000-000000000000");
  }
  EXPECT_TRUE(has_few_parts(message.SerializeAsString()));
  EXPECT_TRUE(has_few_parts(""));
}

TEST(Bounds, WhatALaterBuildSaysBesideIsNotLookedInto) {
  wire::AgentMessage message;
  message.mutable_hello()->set_pod_uid("11111111-0000-0000-0000-000000000000");
  auto& unknown = *message.GetReflection()->MutableUnknownFields(&message);
  unknown.AddLengthDelimited(1000)->assign("text, and no message");
  EXPECT_TRUE(has_few_parts(message.SerializeAsString()));
}

TEST(Bounds, WhatIsNoMessageIsNotParsed) {
  EXPECT_FALSE(has_few_parts(std::string(100, '\xff')));
  EXPECT_FALSE(has_few_parts(std::string(100, '\0')));
  EXPECT_FALSE(has_few_parts("\x13\x14"));           // a group
  EXPECT_FALSE(has_few_parts("\x12\x03\x12\x05x"));  // its worker is longer than itself
}

}  // namespace
}  // namespace rubato::coordinator
