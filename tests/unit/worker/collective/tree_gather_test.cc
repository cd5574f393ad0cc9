#include "worker/collective/tree_gather.h"

#include "tests/unit/worker/collective/fleet.h"

#include <cstring>
#include <set>

namespace rubato::worker {
namespace {

std::string vote_of(std::uint32_t rank, int round) {
  return "vote " + std::to_string(round) + " of " + std::to_string(rank);
}

class TreeGatherTest : public ::testing::Test {
 protected:
  // Members that have all seen that they may vote by the tree.
  std::vector<std::unique_ptr<Communicator>> form(Fleet& fleet) {
    auto all = fleet.form(1);
    fleet.each([&](std::uint32_t rank) {
      EXPECT_TRUE(all[rank]->gather("first").ok());
      all[rank]->vote_by_tree();
      EXPECT_TRUE(all[rank]->gather("second").ok());
    });
    return all;
  }
  // Of `rank`, in the tree.
  static std::set<std::uint32_t> neighbours(std::uint32_t rank, std::uint32_t size) {
    const auto children = tree_children(rank, size);
    std::set<std::uint32_t> all(children.begin(), children.end());
    if (rank != 0) all.insert(tree_parent(rank));
    return all;
  }
  HostDevice device_;
  JobSecret secret_{"job-1"};
};

TEST_F(TreeGatherTest, EveryVoteReachesEverybody) {
  for (std::uint32_t size = 1; size <= 9; ++size) {
    Fleet fleet(size, secret_.dir(), device_);
    auto all = form(fleet);
    fleet.each([&](std::uint32_t rank) {
      ImmediateStream stream;
      std::vector<std::int32_t> in(1000, static_cast<std::int32_t>(rank) + 1);
      std::vector<std::int32_t> out(1000);
      const auto count = static_cast<std::int64_t>(in.size());
      for (int round = 0; round < 4; ++round) {
        ASSERT_TRUE(all[rank]
                        ->all_reduce_int32(stream, Buffer{in.data(), count, DType::kI32},
                                           Buffer{out.data(), count, DType::kI32})
                        .ok());
        EXPECT_EQ(out[999], static_cast<std::int32_t>(size * (size + 1) / 2));
        const auto votes = all[rank]->gather(vote_of(rank, round));
        ASSERT_TRUE(votes.ok()) << votes.error().to_string();
        ASSERT_EQ(votes->size(), size);
        for (std::uint32_t r = 0; r < size; ++r) EXPECT_EQ(votes.value()[r], vote_of(r, round));
      }
    });
  }
}

// What does not fit into the buffers of a connection is carried too, and nobody locks another out.
TEST_F(TreeGatherTest, CarriesTheLargestMessages) {
  Fleet fleet(6, secret_.dir(), device_);
  auto all = form(fleet);
  fleet.each([&](std::uint32_t rank) {
    const auto votes = all[rank]->gather(std::string(kGatherBytes, static_cast<char>('a' + rank)));
    ASSERT_TRUE(votes.ok()) << votes.error().to_string();
    for (std::uint32_t r = 0; r < 6; ++r) {
      EXPECT_EQ(votes.value()[r], std::string(kGatherBytes, static_cast<char>('a' + r)));
    }
  });
}

TEST_F(TreeGatherTest, AbortFreesWhoeverWaits) {
  constexpr std::uint32_t kSize = 7;
  for (std::uint32_t absent = 0; absent < kSize; ++absent) {
    Fleet fleet(kSize, secret_.dir(), device_);
    auto all = form(fleet);
    std::vector<std::thread> waiting;
    for (std::uint32_t rank = 0; rank < kSize; ++rank) {
      if (rank == absent) continue;
      waiting.emplace_back([&, rank] {
        const auto votes = all[rank]->gather("vote");
        ASSERT_FALSE(votes.ok());  // one is missing
        EXPECT_TRUE(votes.error().code() == Code::kCancelled || all[rank]->fault().has_value());
      });
    }
    for (auto& one : all) one->abort();
    for (std::thread& thread : waiting) thread.join();
  }
}

// Whoever has a link with the dead one says so, whatever it waits for itself.
TEST_F(TreeGatherTest, ALostMemberIsNamedByItsNeighboursInTheTree) {
  constexpr std::uint32_t kSize = 9;
  for (std::uint32_t victim = 0; victim < kSize; ++victim) {
    Fleet fleet(kSize, secret_.dir(), device_);
    auto all = form(fleet);
    const auto near = neighbours(victim, kSize);
    std::vector<std::thread> others;
    std::vector<std::thread> witnesses;
    for (std::uint32_t rank = 0; rank < kSize; ++rank) {
      if (rank == victim) continue;
      (near.contains(rank) ? witnesses : others).emplace_back([&, rank] {
        const auto votes = all[rank]->gather("vote");
        ASSERT_FALSE(votes.ok());
        if (!near.contains(rank)) return;
        const auto fault = all[rank]->fault();
        ASSERT_TRUE(fault.has_value());
        EXPECT_EQ(fault->rank, victim) << rank << ": " << fault->why;
        EXPECT_EQ(fault->peer, fleet.members[victim].peer.name);
      });
    }
    all[victim].reset();  // as if the process had died
    for (std::thread& thread : witnesses) thread.join();
    for (auto& one : all) {
      if (one) one->abort();
    }
    for (std::thread& thread : others) thread.join();
  }
}

// Rank 1 waits for its child 3, which does not vote, and has nothing to read from its parent yet.
TEST_F(TreeGatherTest, AParentThatDiesIsSeenByWhoWaitsForAChild) {
  Fleet fleet(4, secret_.dir(), device_);
  auto all = form(fleet);
  std::thread waiting([&] {
    EXPECT_FALSE(all[1]->gather("vote").ok());
    const auto fault = all[1]->fault();
    ASSERT_TRUE(fault.has_value());
    EXPECT_EQ(fault->rank, 0u) << fault->why;
  });
  all[0].reset();
  waiting.join();
}

// Who does not have a vote has not voted: nobody gets all of them without it.
TEST_F(TreeGatherTest, NobodyHasAllVotesBeforeAllHaveVoted) {
  constexpr std::uint32_t kSize = 6;
  for (std::uint32_t late = 0; late < kSize; ++late) {
    Fleet fleet(kSize, secret_.dir(), device_);
    auto all = form(fleet);
    std::atomic<bool> has_voted{false};
    std::atomic<int> begun{0};
    fleet.each([&](std::uint32_t rank) {
      if (rank == late) {
        while (begun.load() + 1 < static_cast<int>(kSize)) std::this_thread::yield();
        has_voted.store(true);
      } else {
        ++begun;
      }
      ASSERT_TRUE(all[rank]->gather("vote").ok());
      EXPECT_TRUE(has_voted.load()) << rank;
    });
  }
}

TEST_F(TreeGatherTest, ARefusalByTheParentEndsTheForming) {
  Fleet fleet(3, secret_.dir(), device_);
  auto membership = fleet.membership(1, 1);
  membership.members[0].name.incarnation = 2;  // nobody of this name listens there
  const auto made = fleet.members[1].factory->create(membership, soon());
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), Code::kDenied);
}

// ---- What a peer should not send ----

// Rank 0 of three, and the far ends of its children's links.
class RootTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Peer& to = fleet_.members[0].peer;
    for (std::uint32_t rank = 1; rank <= 2; ++rank) {
      auto dialled = fleet_.members[rank].hub->dial(to, 1, "tree", soon(), {});
      ASSERT_TRUE(dialled.ok());
      far_.push_back(std::move(dialled).value());
      auto awaited =
          fleet_.members[0].hub->await(fleet_.members[rank].peer.name, 1, "tree", soon());
      ASSERT_TRUE(awaited.ok());
      near_.push_back(std::move(awaited).value());
    }
  }
  static Header up(std::uint64_t operation, std::uint64_t size) {
    return {kOperationMagic, OperationKind::kGatherUp, 1, operation, size};
  }
  static std::string entry(std::uint32_t rank, std::uint32_t bytes, const std::string& message) {
    std::string text(8, '\0');
    std::memcpy(text.data(), &rank, 4);
    std::memcpy(text.data() + 4, &bytes, 4);
    return text + message;
  }
  void says(std::uint32_t rank, const Header& header, const std::string& body) {
    std::string frame(sizeof header, '\0');
    std::memcpy(frame.data(), &header, sizeof header);
    frame += body;
    EXPECT_TRUE(far_[rank - 1]->write_all(frame.data(), frame.size(), soon()).ok());
  }
  std::optional<Failure> gather() {
    std::vector<std::string> messages{"mine", "", ""};
    const std::vector<Neighbour> children{{near_[0].get(), 1}, {near_[1].get(), 2}};
    SystemClock clock;
    TreeGather tree(clock, up(5, 0), {kOperationMagic, OperationKind::kGatherDown, 1, 5, 0}, 0, {},
                    children, messages);
    auto failure = tree.run(soon());
    if (!failure) {
      EXPECT_EQ(messages, (std::vector<std::string>{"mine", "vote", "other"}));
    }
    return failure;
  }
  void refuses(const Header& header, const std::string& body) {
    says(1, header, body);
    const auto failure = gather();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->rank, 1u);
    EXPECT_EQ(failure->error.code(), Code::kInternal);
  }

  HostDevice device_;
  JobSecret secret_{"job-1"};
  Fleet fleet_{3, secret_.dir(), device_};
  std::vector<std::unique_ptr<Link>> far_;
  std::vector<std::unique_ptr<Link>> near_;
};

TEST_F(RootTest, TakesWhatIsRight) {
  says(1, up(5, 12), entry(1, 4, "vote"));
  says(2, up(5, 13), entry(2, 5, "other"));
  EXPECT_FALSE(gather().has_value());
}
// It has the vote of 1 and waits for 2's, which does not come: the end of 1 is news all the same.
TEST_F(RootTest, SeesTheEndOfAMemberThatHasVoted) {
  says(1, up(5, 12), entry(1, 4, "vote"));
  far_[0]->cut();
  const auto failure = gather();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->rank, 1u);
}
// All votes are here: it is decided, and the other child is told.
TEST_F(RootTest, HasAllVotesAlthoughAChildCannotBeTold) {
  says(1, up(5, 12), entry(1, 4, "vote"));
  says(2, up(5, 13), entry(2, 5, "other"));
  far_[0].reset();
  EXPECT_FALSE(gather().has_value());
  Header header;
  ASSERT_TRUE(far_[1]->read_all(&header, sizeof header, soon()).ok());
  EXPECT_EQ(header.kind, OperationKind::kGatherDown);
  EXPECT_EQ(header.size, 3 * 8 + 4 + 4 + 5u);
}
TEST_F(RootTest, RefusesAnotherOperation) { refuses(up(6, 12), entry(1, 4, "vote")); }
TEST_F(RootTest, RefusesAnotherGeneration) {
  Header header = up(5, 12);
  header.generation = 2;
  refuses(header, entry(1, 4, "vote"));
}
TEST_F(RootTest, RefusesAnotherKind) {
  Header header = up(5, 12);
  header.kind = OperationKind::kGather;
  refuses(header, entry(1, 4, "vote"));
}
TEST_F(RootTest, RefusesMoreThanAllMayHaveTogether) { refuses(up(5, kGatherTotalBytes + 1), ""); }
TEST_F(RootTest, RefusesTheVoteOfAnother) {
  says(2, up(5, 13), entry(2, 5, "other"));
  refuses(up(5, 12), entry(0, 4, "vote"));
}
TEST_F(RootTest, RefusesAMessageLongerThanItsFrame) {
  says(2, up(5, 13), entry(2, 5, "other"));
  refuses(up(5, 12), entry(1, 5, "vote"));
}
TEST_F(RootTest, RefusesOneMessageTooMany) {
  says(2, up(5, 13), entry(2, 5, "other"));
  refuses(up(5, 24), entry(1, 4, "vote") + entry(1, 4, "vote"));
}
TEST_F(RootTest, RefusesNoMessage) {
  says(2, up(5, 13), entry(2, 5, "other"));
  refuses(up(5, 0), "");
}

}  // namespace
}  // namespace rubato::worker
