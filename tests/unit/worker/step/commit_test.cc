#include "worker/step/commit.h"

#include "tests/unit/worker/step/fake_replica.h"
#include "worker/step/round_share.h"
#include "worker/testing/fault_points.h"

#include <csignal>
#include <limits>

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

TEST(FoldVotes, OneValidationThatIsNotFiniteIsTheSum) {
  auto a = vote(2, 1);
  auto b = vote(2, 1);
  CommitTerms due = terms();
  due.validation_batches = 2;
  a.set_validation_batches(1);
  b.set_validation_batches(1);
  a.set_validation_q(-3);
  b.set_validation_q(5);
  EXPECT_EQ(fold_votes(due, {a, b}).value().validation_q(), 2);
  b.set_validation_q(kNotFiniteQ);
  EXPECT_EQ(fold_votes(due, {a, b}).value().validation_q(), kNotFiniteQ);
  EXPECT_EQ(fold_votes(due, {b, a}).value().validation_q(), kNotFiniteQ);
  a.set_validation_q(kNotFiniteQ);
  EXPECT_EQ(fold_votes(due, {a, b}).value().validation_q(), kNotFiniteQ);
}

TEST(FoldVotes, SquaredNormsCountWhereAllHaveMeasuredThem) {
  auto a = vote(1, 1);
  auto b = vote(3, 1);
  auto idle = vote(0, 0);
  a.set_squared_norms(0.5);
  b.set_squared_norms(1.5);
  EXPECT_EQ(fold_votes(terms(), {a, b, idle}).value().squared_norms(), 2);
  b.clear_squared_norms();  // of a build before
  EXPECT_EQ(fold_votes(terms(), {a, b, idle}).value().squared_norms(), 0);
  b.set_squared_norms(std::numeric_limits<double>::infinity());
  EXPECT_EQ(fold_votes(terms(), {a, b, idle}).value().squared_norms(), 0);
}

TEST(FoldVotes, AScriptEndsTheJobWhereAllKnowHow) {
  auto a = vote(2, 1);
  auto b = vote(2, 1);
  a.set_non_finite(true);
  a.set_end(wire::END_NOW);
  EXPECT_EQ(fold_votes(terms(), {a, b}).value().outcome(), wire::OUTCOME_NON_FINITE);
  b.set_end(wire::END_GO_ON);
  EXPECT_EQ(fold_votes(terms(), {a, b}).value().outcome(), wire::OUTCOME_ENDED);
  a.set_state_digest(1);
  b.set_state_digest(2);
  EXPECT_EQ(fold_votes(terms(), {a, b}).value().outcome(), wire::OUTCOME_DIVERGED);
}

// ---- Sums are compared ----

wire::CommitVote weighed(std::uint64_t given, std::uint64_t reduced, std::uint32_t guards = 0) {
  auto one = vote(2, 1);
  one.mutable_given()->set_elements(given);
  one.mutable_given()->set_guards(guards);
  one.mutable_reduced()->set_elements(reduced);
  one.mutable_reduced()->set_guards(2 * guards);
  return one;
}

TEST(FoldVotes, WhatWasReducedIsTheSumOfWhatWasGiven) {
  const std::uint64_t most = ~std::uint64_t{0};
  EXPECT_TRUE(fold_votes(terms(), {weighed(most, 4), weighed(5, 4)}).ok());
  const auto one = fold_votes(terms(), {weighed(7, 12), weighed(5, 13)});
  ASSERT_FALSE(one.ok());
  EXPECT_EQ(one.error().code(), Code::kInternal);
  EXPECT_EQ(one.error().reason(), kWrongSum);
  EXPECT_NE(one.error().what().find("rank 1 got"), std::string::npos) << one.error().what();
  const auto alike = fold_votes(terms(), {weighed(7, 13), weighed(5, 13)});
  ASSERT_FALSE(alike.ok());
  EXPECT_NE(alike.error().what().find("ranks 0, 1 got"), std::string::npos);
}

TEST(FoldVotes, WhereASumHasOverflowedItsGuardsAloneAreCompared) {
  auto a = weighed(7, 1, 1u << 31);
  auto b = weighed(5, 2, 1u << 31);
  EXPECT_EQ(fold_votes(terms(), {a, b}).error().reason(), kWrongSum);
  a.set_overflow(true);
  EXPECT_EQ(fold_votes(terms(), {a, b}).value().outcome(), wire::OUTCOME_REDO);
  b.mutable_reduced()->set_guards(1);
  EXPECT_EQ(fold_votes(terms(), {a, b}).error().reason(), kWrongSum);
}

TEST(FoldVotes, SumsAreComparedWhereAllHaveWeighedThemAndNoStatesDiffer) {
  auto a = weighed(7, 1);
  auto b = weighed(5, 1);
  b.clear_given();  // of a build before
  b.clear_reduced();
  EXPECT_EQ(fold_votes(terms(), {a, b}).value().outcome(), wire::OUTCOME_APPLY);
  b = weighed(5, 1);
  a.set_state_digest(1);
  b.set_state_digest(2);
  EXPECT_EQ(fold_votes(terms(), {a, b}).value().outcome(), wire::OUTCOME_DIVERGED);
}

// `sum`: what it got from a reduction of 12.
wire::CommitVote hopped(std::uint64_t sum, std::uint32_t got, std::uint32_t sent,
                        std::uint32_t excess = 0) {
  auto one = weighed(3, sum);
  one.set_micro_batches(1);
  one.mutable_hops()->set_got(got);
  one.mutable_hops()->set_sent(sent);
  one.mutable_hops()->set_excess(excess);
  return one;
}

TEST(FoldVotes, WhoMakesASumWrongAgainIsNamed) {
  struct Case {
    std::vector<wire::CommitVote> votes;
    std::vector<std::uint32_t> named;
  };
  const auto right = hopped(12, 5, 5);
  const auto wrong = hopped(13, 5, 5);
  auto silent = wrong;  // of a build before, or it has not seen the first wrong sum
  silent.clear_hops();
  const std::vector<Case> cases{
      // Rank 2 adds wrongly, and all have the same wrong sum.
      {{wrong, wrong, hopped(13, 5, 6, 1), hopped(13, 6, 5)}, {2}},
      // Rank 1 does not get what rank 0 sends.
      {{wrong, hopped(13, 4, 5), wrong, wrong}, {1}},
      // All hops are right, and rank 3 has another sum.
      {{right, right, right, wrong}, {3}},
      {{right, hopped(13, 5, 5, 1)}, {1}},
      // Nobody knows.
      {{wrong, wrong, wrong, wrong}, {}},
      {{right, wrong, wrong, wrong}, {}},
      {{wrong, silent, hopped(13, 5, 6, 1), hopped(13, 6, 5)}, {}},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    auto votes = cases[i].votes;
    votes.front().set_micro_batches(terms().micro_batches -
                                    static_cast<std::uint32_t>(votes.size()) + 1);
    for (auto& one : votes) one.mutable_given()->set_elements(12 / votes.size());
    const auto folded = fold_votes(terms(), votes);
    if (cases[i].named.empty()) {
      ASSERT_FALSE(folded.ok()) << i;
      EXPECT_EQ(folded.error().reason(), kWrongSum) << i;
      continue;
    }
    ASSERT_TRUE(folded.ok()) << i;
    EXPECT_EQ(folded->outcome(), wire::OUTCOME_DIVERGED) << i;
    EXPECT_TRUE(folded->adds_wrongly()) << i;
    EXPECT_EQ(std::vector<std::uint32_t>(folded->diverged().begin(), folded->diverged().end()),
              cases[i].named)
        << i;
  }
  EXPECT_EQ(fold_votes(terms(), {right, right, right, right}).value().outcome(),
            wire::OUTCOME_APPLY);
  wire::CommitRecord record;
  record.set_adds_wrongly(true);
  record.add_diverged(1);
  EXPECT_EQ(describe_divergence(terms(), {right, wrong}, record, {"a", "b"}),
            "the sum of the gradients is wrong again, by b");
}

// ---- States are compared ----

wire::CommitVote with_state(std::uint64_t digest) {
  auto one = vote(1, 1);
  one.set_state_digest(digest);
  return one;
}
std::vector<std::uint32_t> diverged(const wire::CommitRecord& record) {
  return {record.diverged().begin(), record.diverged().end()};
}
using Ranks = std::vector<std::uint32_t>;

TEST(FoldVotes, EqualStatesChangeNothing) {
  const auto votes = {with_state(7), with_state(7), with_state(7), with_state(7)};
  const auto folded = fold_votes(terms(), votes);
  EXPECT_EQ(folded.value().outcome(), wire::OUTCOME_APPLY);
  EXPECT_EQ(folded.value().diverged_size(), 0);
}

TEST(FoldVotes, TheMinorityIsNamed) {
  const auto folded =
      fold_votes(terms(), {with_state(7), with_state(7), with_state(9), with_state(7)});
  ASSERT_TRUE(folded.ok());
  EXPECT_EQ(folded.value().outcome(), wire::OUTCOME_DIVERGED);
  EXPECT_EQ(diverged(folded.value()), Ranks{2});
}

TEST(FoldVotes, WithoutAStrictMajorityAllAreNamed) {
  const auto halves =
      fold_votes(terms(), {with_state(7), with_state(9), with_state(9), with_state(7)});
  EXPECT_EQ(halves.value().outcome(), wire::OUTCOME_DIVERGED);
  EXPECT_EQ(diverged(halves.value()), (Ranks{0, 1, 2, 3}));
  const auto most =  // two of four agree, and two are alone
      fold_votes(terms(), {with_state(7), with_state(9), with_state(8), with_state(7)});
  EXPECT_EQ(diverged(most.value()), (Ranks{0, 1, 2, 3}));
}

TEST(FoldVotes, WhoSendsNoDigestIsNotCompared) {
  const auto equal =
      fold_votes(terms(), {with_state(7), with_state(0), with_state(7), with_state(0)});
  EXPECT_EQ(equal.value().outcome(), wire::OUTCOME_APPLY);
  const auto differ =
      fold_votes(terms(), {with_state(7), with_state(0), with_state(7), with_state(8)});
  EXPECT_EQ(diverged(differ.value()), Ranks{3});
}

TEST(FoldVotes, ADifferenceWinsOverOverflowAndNonFinite) {
  auto odd = with_state(9);
  odd.set_non_finite(true);
  const auto folded = fold_votes(terms(), {with_state(7), with_state(7), with_state(7), odd});
  EXPECT_EQ(folded.value().outcome(), wire::OUTCOME_DIVERGED);
}

TEST(DescribeDivergence, SaysWhoAndWhat) {
  const std::string text = describe_divergence(
      terms(), {with_state(0x11), with_state(0x22), with_state(0x11)}, {}, {"a", "b", "c"});
  EXPECT_EQ(text,
            "part 8 of 64 of the state is 0000000000000011 at a, c, but "
            "0000000000000022 at b");
  CommitTerms before_a_checkpoint = terms();
  before_a_checkpoint.whole_state = true;
  EXPECT_EQ(describe_divergence(before_a_checkpoint, {with_state(0x11), with_state(0x22)}, {},
                                {"a", "b"}),
            "the state is 0000000000000011 at a, but 0000000000000022 at b");
}

TEST(StateDigest, SeesEachBitInOnePartAndWhereTheStateStands) {
  FakeTroubles troubles;
  troubles.ballast = 37;  // parts do not end where sections do
  FakeReplica replica(troubles);
  const auto parts = [&](std::uint64_t seq) {
    std::vector<std::uint64_t> all;
    for (std::uint32_t part = 0; part < kStateParts; ++part)
      all.push_back(state_digest(replica, part, kStateParts, seq).value());
    return all;
  };
  const auto before = parts(5);
  EXPECT_EQ(parts(5), before);
  const auto stale = parts(4);
  for (std::size_t i = 0; i < kStateParts; ++i) EXPECT_NE(stale[i], before[i]);
  std::size_t seen = 0;
  for (const Buffer& section : replica.sections()) {
    auto* words = static_cast<std::int32_t*>(section.address());
    for (std::int64_t i = 0; i < section.count(); ++i, ++seen) {
      words[i] ^= 1 << (i % 32);
      const auto after = parts(5);
      words[i] ^= 1 << (i % 32);
      std::size_t differ = 0;
      for (std::size_t part = 0; part < kStateParts; ++part) differ += after[part] != before[part];
      ASSERT_EQ(differ, 1u) << "element " << seen;
    }
  }
  EXPECT_EQ(seen, kFakeSize + 37);
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
