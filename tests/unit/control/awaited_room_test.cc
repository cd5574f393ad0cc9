#include "operator/control/awaited_room.h"

#include "tests/unit/control/fixtures.h"

namespace rubato::control {
namespace {

constexpr Duration kRoomPatience = 2s;
const std::string kHoldsOne =
    R"("allocation":{"epoch":1,"gpus":1,"pods":[{"ordinal":0,"name":"job-w0","node":"n0","gpus":1,"gpuType":"A"}]})";
const std::string kOver =
    R"("conditions":[{"type":"Complete","status":"True","reason":"Completed"}],)" + kHoldsOne;

class AwaitedRoomTest : public ::testing::Test {
 protected:
  std::optional<MonoTime> at(Duration now) {
    world_.now = MonoTime{now};
    return room_.wait_until(world_, kRoomPatience);
  }
  void has(const std::string& status, const std::vector<std::string>& pods,
           const std::string& phase = "Running") {
    world_.jobs = {job(1, 4, status)};
    world_.pods.clear();
    for (const auto& name : pods) world_.pods.push_back(pod(name, "n0", phase, "job-uid-1"));
  }

  World world_;
  AwaitedRoom room_;
};

TEST_F(AwaitedRoomTest, ARoundWaitsForPodsThatLeaveTogether) {
  has(kOver, {"job-w0", "job-w1"});
  EXPECT_EQ(at(10s), MonoTime{12s});
  has(kOver, {"job-w0"});
  EXPECT_EQ(at(11s), MonoTime{12s}) << "from the first on, or it would never end";
  has(kOver, {});
  EXPECT_EQ(at(11500ms), std::nullopt);
}

TEST_F(AwaitedRoomTest, OnceForEachPodAndNoLonger) {
  has(kOver, {"job-w0", "job-w1"});
  EXPECT_EQ(at(10s), MonoTime{12s});
  EXPECT_EQ(at(12s), std::nullopt);
  has(kOver, {"job-w0"});
  EXPECT_EQ(at(12100ms), std::nullopt) << "it was waited for";
  has(kOver, {"job-w0", "job-w2"});
  EXPECT_EQ(at(13s), MonoTime{15s}) << "one more";
  EXPECT_EQ(at(15s), std::nullopt);
}

TEST_F(AwaitedRoomTest, NotForPodsThatStayOrAreReplacedOrHaveNoGpusAnyMore) {
  has(kHoldsOne, {"job-w0"});
  EXPECT_EQ(at(1s), std::nullopt);
  world_.pods = {pod("job-w0", "n0", "Running", "job-uid-1",
                     R"(,"deletionTimestamp":"2026-11-21T07:00:00Z")")};
  EXPECT_EQ(at(2s), std::nullopt) << "somebody deleted it: another takes its place at once";
  has(kOver, {"job-w0"}, "Succeeded");
  EXPECT_EQ(at(3s), std::nullopt);
  world_.pods = {pod("other", "n0", "Running"), pod("job-w1", "", "Pending", "job-uid-1")};
  EXPECT_EQ(at(4s), std::nullopt);
}

// A job that goes on with fewer.
TEST_F(AwaitedRoomTest, ForPodsThatAnAllocationNoLongerHas) {
  has(kHoldsOne, {"job-w0", "job-w1"});
  EXPECT_EQ(at(1s), MonoTime{3s});
}

// A view is a copy, and that of a job of thousands is large.
TEST_F(AwaitedRoomTest, AsksOnceForTheViewOfAJob) {
  has(kHoldsOne, {"job-w0", "job-w1", "job-w2"});
  int asked = 0;
  world_.view_of = [&](const std::string&) {
    ++asked;
    return std::optional<coordinator::View>();
  };
  EXPECT_EQ(at(1s), MonoTime{3s});
  EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace rubato::control
