#include "worker/step/commit.h"

#include "worker/step/fault_points.h"
#include "worker/step/round_share.h"

#include <csignal>

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

CommitTerms terms() { return {.generation = 3, .seq = 8, .step = 7, .micro_batches = 4}; }
wire::CommitVote vote(std::uint32_t micro_batches, std::int64_t loss_q) {
  wire::CommitVote vote;
  vote.set_generation(3);
  vote.set_seq(8);
  vote.set_micro_batches(micro_batches);
  vote.set_loss_q(loss_q);
  vote.set_sample_digest(static_cast<std::uint64_t>(loss_q) << 40);
  return vote;
}

TEST(FoldVotes, SumsAndDoesNotSeeTheOrder) {
  const auto one = fold_votes(terms(), {vote(1, 10), vote(3, -4)});
  const auto other = fold_votes(terms(), {vote(3, -4), vote(1, 10)});
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one.value().SerializeAsString(), other.value().SerializeAsString());
  EXPECT_EQ(one.value().loss_q(), 6);
  EXPECT_EQ(one.value().outcome(), wire::OUTCOME_APPLY);
  EXPECT_EQ(one.value().switch_generation(), 0u);
}

TEST(FoldVotes, MicroBatchesMustAddUp) {
  const auto short_of_one = fold_votes(terms(), {vote(1, 1), vote(2, 1)});
  ASSERT_FALSE(short_of_one.ok());
  EXPECT_EQ(short_of_one.error().reason(), "LedgerMismatch");
}

TEST(FoldVotes, RefusesVotesOfAnotherRound) {
  auto stale = vote(2, 1);
  stale.set_seq(7);
  EXPECT_EQ(fold_votes(terms(), {vote(2, 1), stale}).error().code(), Code::kInternal);
}

TEST(FoldVotes, SwitchesOnlyWhenAllArePrepared) {
  auto a = vote(2, 1);
  auto b = vote(2, 1);
  a.set_prepared_generation(4);
  EXPECT_EQ(fold_votes(terms(), {a, b}).value().switch_generation(), 0u);
  b.set_prepared_generation(4);
  EXPECT_EQ(fold_votes(terms(), {a, b}).value().switch_generation(), 4u);
}

TEST(FoldVotes, NonFiniteWinsOverOverflowAndOneRequestIsEnough) {
  auto a = vote(2, 1);
  auto b = vote(2, 1);
  a.set_overflow(true);
  a.set_stop(true);
  EXPECT_EQ(fold_votes(terms(), {a, b}).value().outcome(), wire::OUTCOME_REDO);
  b.set_non_finite(true);
  const auto folded = fold_votes(terms(), {a, b});
  EXPECT_EQ(folded.value().outcome(), wire::OUTCOME_NON_FINITE);
  EXPECT_TRUE(folded.value().stop());
}

TEST(RoundShare, RemembersWhatItHolds) {
  RoundShare share;
  share.reset(9);
  for (const std::uint32_t micro : {4u, 1u, 2u}) share.add(micro, {10, micro, micro == 4});
  EXPECT_EQ(share.ranges(), (std::vector<wire::MicroRange>{{1, 3}, {4, 5}}));
  EXPECT_EQ(share.sum().loss_q, 30);
  EXPECT_EQ(share.sum().sample_digest, 7u);
  EXPECT_TRUE(share.sum().non_finite);
  EXPECT_TRUE(share.fits({{0, 3}, {4, 6}}));
  EXPECT_FALSE(share.fits({{0, 3}}));
  share.reset(10);
  EXPECT_TRUE(share.fits({}));
}

TEST(FaultPlan, Reads) {
  const auto plan = parse_fault_plan("reduce:12:stop-group");
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan.value(), (FaultPlan{"reduce", 12, SIGSTOP, true}));
  EXPECT_EQ(parse_fault_plan("commit").value(),
            (FaultPlan{"commit", std::nullopt, SIGKILL, false}));
  EXPECT_FALSE(parse_fault_plan("").ok());
  EXPECT_FALSE(parse_fault_plan("apply:x").ok());
  EXPECT_FALSE(parse_fault_plan("apply:1:dance").ok());
  EXPECT_EQ(parse_fault_plan("compute:*:slow-20").value().slow, 20ms);
  EXPECT_FALSE(parse_fault_plan("compute:*:slow-99999999").ok());
}

}  // namespace
}  // namespace rubato::worker
