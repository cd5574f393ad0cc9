// The donor's side of a join, with a follower that reads when the test says so.
#include "worker/step/state_server.h"

#include "common/testing/refusing_executor.h"
#include "tests/unit/worker/collective/fleet.h"

#include <condition_variable>
#include <mutex>

namespace rubato::worker {
namespace {

constexpr std::size_t kBig = std::size_t{32} << 20;  // more than the sockets between hold

class BigSnapshot : public Snapshot {
 public:
  std::uint64_t step() const override { return 7; }
  std::vector<std::size_t> section_bytes() const override { return {state_.size()}; }
  Result<std::vector<std::span<const std::byte>>> sections() const override {
    return std::vector<std::span<const std::byte>>{state_};
  }
  Result<std::string> save(std::span<const StepRecord>, std::uint32_t) override {
    return std::string();
  }

 private:
  std::vector<std::byte> state_ = std::vector<std::byte>(kBig);
};

std::shared_ptr<const StateImage> big_image() {
  auto image = std::make_shared<StateImage>();
  image->snapshot = std::make_shared<BigSnapshot>();
  image->records = std::make_shared<const std::vector<StepRecord>>();
  image->head.set_seq(7);
  image->head.add_section_bytes(kBig);
  return image;
}

std::shared_ptr<const DecidedRound> big_round(std::uint64_t seq) {
  auto round = std::make_shared<DecidedRound>();
  round->record.set_seq(seq);
  round->reduced.resize(kBig / sizeof(std::int32_t));
  return round;
}

class StateServerTest : public ::testing::Test {
 protected:
  StateServerTest() {
    fleet_.members[0].hub->serve(
        "state", [this](std::unique_ptr<Link> link, const WorkerName& from, std::uint64_t g) {
          server_.accept(std::move(link), from, g);
        });
    link_ = fleet_.members[1].hub->dial(fleet_.members[0].peer, 1, "state", soon(), {}).value();
    wait([&] { return server_.wants_snapshot(); });
  }
  template <class Done>
  void wait(Done done) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kPatience, done));
  }
  // The next frame that is no alive, with the bytes that belong to it.
  wire::StateFrame read() {
    wire::StateFrame frame;
    do {
      EXPECT_TRUE(frame.ParseFromString(link_->receive_frame(soon()).value()));
    } while (frame.body_case() == wire::StateFrame::kAlive);
    std::vector<std::byte> bytes;
    if (frame.has_snapshot()) bytes.resize(frame.snapshot().section_bytes(0));
    if (frame.has_round()) bytes.resize(frame.round().reduced_bytes());
    EXPECT_TRUE(link_->read_all(bytes.data(), bytes.size(), soon()).ok());
    return frame;
  }
  std::uint64_t read_alive() {
    wire::StateFrame frame;
    EXPECT_TRUE(frame.ParseFromString(link_->receive_frame(soon()).value()));
    EXPECT_EQ(frame.body_case(), wire::StateFrame::kAlive);
    return frame.alive();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  JobSecret secret_{"job-1"};
  HostDevice device_;
  Fleet fleet_{2, secret_.dir(), device_};
  const std::vector<Peer> both_{fleet_.members[0].peer, fleet_.members[1].peer};
  std::atomic<bool> is_out_of_threads_ = false;
  testing::RefusingExecutor executor_{
      fleet_.executor, [this](const std::string&) { return is_out_of_threads_.load(); }};
  StateServer server_{executor_, [this] {
                        const std::lock_guard lock(mutex_);
                        changed_.notify_all();
                      }};
  std::unique_ptr<Link> link_;
};

TEST_F(StateServerTest, IsLevelOnlyWhenAllIsSent) {
  EXPECT_FALSE(server_.is_level(both_));
  EXPECT_TRUE(server_.is_level({fleet_.members[0].peer}));  // nobody of these follows

  server_.give(big_image());
  server_.set_seq(8);
  server_.push(big_round(7));
  EXPECT_TRUE(read().has_snapshot());
  EXPECT_TRUE(read().has_tail());
  EXPECT_FALSE(server_.is_level(both_));  // a whole round is still to come
  EXPECT_EQ(read().round().record().seq(), 7u);
  EXPECT_EQ(read_alive(), 8u);  // at once: nothing is left
  EXPECT_TRUE(server_.is_level(both_));

  server_.set_seq(9);
  server_.push(big_round(8));
  EXPECT_FALSE(server_.is_level(both_));
  EXPECT_EQ(read().round().record().seq(), 8u);
  EXPECT_EQ(read_alive(), 9u);
  EXPECT_TRUE(server_.is_level(both_));
}

TEST_F(StateServerTest, AFollowerThatHangsUpIsOwedNothing) {
  server_.give(big_image());
  link_.reset();
  const MonoTime deadline = soon();
  while (!server_.is_level(both_) && SystemClock().now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(server_.is_level(both_));
  EXPECT_FALSE(server_.has_followers());
}

TEST_F(StateServerTest, WhoCannotBeServedIsToldThatWeAreBusyAndCutOff) {
  server_.refuse();
  EXPECT_FALSE(server_.wants_snapshot());
  EXPECT_TRUE(read().has_busy());
  EXPECT_FALSE(link_->receive_frame(soon()).ok());
}

// Who comes when all places are taken is told so, and served when one is free.
TEST_F(StateServerTest, OneTooManyIsToldThatWeAreBusy) {
  const auto dial = [&] {
    return fleet_.members[1].hub->dial(fleet_.members[0].peer, 1, "state", soon(), {}).value();
  };
  std::vector<std::unique_ptr<Link>> others;
  for (std::size_t i = 1; i < kFollowersMax; ++i) {
    others.push_back(dial());
    wire::StateFrame frame;  // served: it is kept alive
    ASSERT_TRUE(frame.ParseFromString(others.back()->receive_frame(soon()).value()));
    EXPECT_EQ(frame.body_case(), wire::StateFrame::kAlive);
  }
  const auto one_more = dial();
  wire::StateFrame answer;
  ASSERT_TRUE(answer.ParseFromString(one_more->receive_frame(soon()).value()));
  EXPECT_TRUE(answer.has_busy());
  EXPECT_FALSE(one_more->receive_frame(soon()).ok());  // and the link ends
  others.pop_back();
  const MonoTime deadline = soon();
  bool is_served = false;
  while (!is_served && SystemClock().now() < deadline) {
    const auto again = dial();
    ASSERT_TRUE(answer.ParseFromString(again->receive_frame(soon()).value()));
    is_served = !answer.has_busy();
  }
  EXPECT_TRUE(is_served);
}

// So is who comes when the system has no thread for it.
TEST_F(StateServerTest, AFollowerWithoutAThreadIsToldThatWeAreBusy) {
  const auto answer = [&] {
    const auto link =
        fleet_.members[1].hub->dial(fleet_.members[0].peer, 2, "state", soon(), {}).value();
    wire::StateFrame frame;
    EXPECT_TRUE(frame.ParseFromString(link->receive_frame(soon()).value()));
    return frame.body_case();
  };
  is_out_of_threads_ = true;
  EXPECT_EQ(answer(), wire::StateFrame::kBusy);
  is_out_of_threads_ = false;
  EXPECT_EQ(answer(), wire::StateFrame::kAlive);
}

}  // namespace
}  // namespace rubato::worker
