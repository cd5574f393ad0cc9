#include "common/testing/sim_stream.h"

#include <array>
#include <string>

#include <gtest/gtest.h>

namespace rubato::testing {
namespace {

class SimStreamTest : public ::testing::Test {
 protected:
  // Connects a to b, in a fiber of each.
  void SetUp() override {
    Task accepts = b_.spawn(
        "accept", [this](const std::stop_token&) { here_ = *listens_->accept(b_.now() + 5s); });
    Task dials = a_.spawn("dial", [this](const std::stop_token&) {
      there_ = *streams_->dial("b", listens_->port(), a_.now() + 5s, {});
    });
    ASSERT_TRUE(executor_.run_until([&] { return here_ && there_; }, 5s));
  }
  std::string read(SimStream& stream) {
    std::array<char, 64> bytes{};
    return {bytes.data(), stream.try_read(bytes.data(), bytes.size()).value()};
  }

  SimExecutor executor_{1};
  SimNetwork network_{executor_, 2};
  SimProcess& a_ = executor_.process("a");
  SimProcess& b_ = executor_.process("b");
  std::unique_ptr<SimStreams> streams_ = network_.attach_streams(a_, "a");
  std::unique_ptr<SimStreams> listens_ = network_.attach_streams(b_, "b");
  std::unique_ptr<SimStream> there_, here_;
};

TEST_F(SimStreamTest, CarriesBytesInOrderAndInPieces) {
  EXPECT_EQ(there_->try_write("one", 3).value(), 3u);
  EXPECT_EQ(there_->try_write("two", 3).value(), 3u);
  EXPECT_EQ(read(*here_), "");
  executor_.run_for(1s);
  char first = 0;
  EXPECT_EQ(here_->try_read(&first, 1).value(), 1u);
  EXPECT_EQ(first, 'o');
  EXPECT_EQ(read(*here_), "netwo");
}

TEST_F(SimStreamTest, IsBounded) {
  const std::string much(2 * kStreamWindow, 'x');
  const std::size_t sent = there_->try_write(much.data(), much.size()).value();
  EXPECT_LE(sent, kStreamWindow);
  EXPECT_EQ(there_->try_write("x", 1).value(), 0u);
  executor_.run_for(1s);
  EXPECT_EQ(read(*here_).size(), 64u);
  std::string rest(sent, ' ');
  EXPECT_EQ(here_->try_read(rest.data(), rest.size()).value(), sent - 64);
  EXPECT_GT(there_->try_write("x", 1).value(), 0u);
}

TEST_F(SimStreamTest, ACutEndsBothSides) {
  EXPECT_EQ(there_->try_write("last words", 10).value(), 10u);
  there_->cut();
  EXPECT_TRUE(there_->is_cut());
  EXPECT_EQ(there_->try_write("x", 1).error().code(), Code::kCancelled);
  executor_.run_for(1s);
  EXPECT_EQ(read(*here_), "last words");
  char byte = 0;
  EXPECT_EQ(here_->try_read(&byte, 1).error().code(), Code::kUnavailable);
}

TEST_F(SimStreamTest, WaitsForWhatComesFirst) {
  bool woke = false;
  Task waits = b_.spawn("wait", [&](const std::stop_token&) {
    EXPECT_EQ(read(*here_), "");
    std::array<StreamWait, 1> one{StreamWait{.stream = here_.get()}};
    SimStream::wait_among(one, b_.now() + 1h);
    woke = true;
  });
  executor_.run_for(1s);
  EXPECT_FALSE(woke);
  EXPECT_EQ(there_->try_write("x", 1).value(), 1u);
  executor_.run_for(1s);
  EXPECT_TRUE(woke);
}

TEST_F(SimStreamTest, ACrashIsTheEndOfTheStream) {
  a_.crash();
  executor_.run_for(1s);
  char byte = 0;
  EXPECT_EQ(here_->try_read(&byte, 1).error().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace rubato::testing
