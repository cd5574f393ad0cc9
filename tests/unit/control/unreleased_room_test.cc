#include "operator/control/unreleased_room.h"

#include <gtest/gtest.h>

namespace rubato::control {
namespace {

using sched::Action;
using sched::ActionKind;

// Two queues are parts of "whole", which may hold 7 GPUs; "apart" may hold 4, and "free" anything.
class UnreleasedRoomTest : public ::testing::Test {
 protected:
  UnreleasedRoomTest() {
    for (const char* name : {"a", "b", "whole", "apart", "free"}) state_.queues[name].name = name;
    state_.queues["a"].parent = state_.queues["b"].parent = "whole";
    state_.queues["whole"].quotas["*"].limit = 7;
    state_.queues["apart"].quotas["*"].limit = 4;
    for (const char* queue : {"a", "b", "apart", "free"}) {
      add_job(std::string("holds-") + queue, queue, {"n1", "n2"});
      add_job(std::string("waits-") + queue, queue, {});
    }
  }

  void add_job(const std::string& id, const std::string& queue,
               const std::vector<sched::NodeId>& nodes) {
    sched::Job job{.id = id, .name = id, .queue = queue};
    for (const auto& node : nodes)
      job.held.push_back({.ordinal = static_cast<std::int64_t>(job.held.size()), .node = node});
    state_.jobs.push_back(std::move(job));
  }
  static Action shrinks(const std::string& job) {
    return {.kind = ActionKind::kShrink, .job = job, .remove = {1}};
  }
  static Action starts(const std::string& job, const sched::NodeId& node) {
    return {.kind = ActionKind::kStart, .job = job, .add = {{.node = node, .gpus = 1}}};
  }

  sched::ClusterState state_;
};

TEST_F(UnreleasedRoomTest, WhoNeedsTheNodeWaits) {
  UnreleasedRoom room(state_);
  EXPECT_FALSE(room.is_needed_by(starts("waits-free", "n2")));
  room.note(shrinks("holds-free"));
  EXPECT_TRUE(room.is_needed_by(starts("waits-free", "n2")));
  EXPECT_FALSE(room.is_needed_by(starts("waits-free", "n3")));
}

// Its GPUs are free, on a node where the other holds nothing; the limit of both is full.
TEST_F(UnreleasedRoomTest, WhoNeedsItsPartOfALimitWaitsOnAnyNode) {
  UnreleasedRoom room(state_);
  room.note(shrinks("holds-a"));
  EXPECT_TRUE(room.is_needed_by(starts("waits-a", "n3")));
  EXPECT_TRUE(room.is_needed_by(starts("waits-b", "n3"))) << "of the parent of both";
  EXPECT_FALSE(room.is_needed_by(starts("waits-apart", "n3"))) << "another limit";
  EXPECT_FALSE(room.is_needed_by(starts("waits-free", "n3")));
  EXPECT_FALSE(room.is_needed_by(shrinks("holds-b"))) << "it takes nothing";
}

TEST_F(UnreleasedRoomTest, AQueueThatMayNotBorrowIsLimitedToo) {
  state_.queues["free"].borrowing = false;
  UnreleasedRoom room(state_);
  room.note(shrinks("holds-free"));
  EXPECT_TRUE(room.is_needed_by(starts("waits-free", "n3")));
}

TEST_F(UnreleasedRoomTest, WhatOnlyTakesLetsNothingGo) {
  UnreleasedRoom room(state_);
  room.note(starts("holds-a", "n3"));
  EXPECT_FALSE(room.is_needed_by(starts("waits-b", "n1")));
}

}  // namespace
}  // namespace rubato::control
