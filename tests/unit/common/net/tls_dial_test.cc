#include "common/net/tls_dial.h"

#include "common/testing/sim_executor.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::net {
namespace {

// The test is the I/O thread. Clocks are virtual, but for Asio's timers.
class TlsDialTest : public ::testing::Test {
 protected:
  struct Attempt {
    std::shared_ptr<TlsConnection> connection;
    std::shared_ptr<Dial> dial;
  };

  // What is under way holds all that it uses.
  ~TlsDialTest() override {
    io_->context.restart();
    io_->context.run();
  }

  Attempt start(const std::string& name) {
    Attempt made;
    made.connection =
        std::make_shared<TlsConnection>(io_, Tcp::socket(io_->context), context_, TlsRole::kClient);
    made.dial = std::make_shared<Dial>(io_, names_, made.connection, Endpoint{name, 1}, name,
                                       process_.now() + 10min);
    made.dial->start();
    return made;
  }

  testing::SimExecutor sim_{1};
  testing::SimProcess& process_ = sim_.process("dialer");
  const std::shared_ptr<SslContext> context_ = std::make_shared<SslContext>(SslContext::tls);
  const std::shared_ptr<Io> io_ = std::make_shared<Io>(process_);
  std::vector<LookupDone> asked_;
  const std::shared_ptr<NameLookups> names_ = std::make_shared<NameLookups>(
      io_, [this](const std::string&, const LookupDone& done) { asked_.push_back(done); });
};

// As an agent does whose list holds a dozen addresses that swallow what is sent to them.
TEST_F(TlsDialTest, ALateAnswerIsKeptForWhoComesBackAfterALongRound) {
  const Attempt first = start("late.test");
  ASSERT_EQ(asked_.size(), 1u);
  process_.skew(5s, 5s);
  asked_[0](std::vector<std::string>{"127.0.0.1"});
  io_->context.poll();
  process_.skew(40s, 40s);
  const Attempt second = start("late.test");
  EXPECT_EQ(asked_.size(), 1u) << "it was asked again";
  EXPECT_TRUE(second.connection->socket().is_open());
  const Attempt third = start("late.test");
  EXPECT_EQ(asked_.size(), 2u) << "an answer is used once";
}

TEST_F(TlsDialTest, AnAnswerStartsNothingForWhoHasGivenUp) {
  const Attempt attempt = start("late.test");
  ASSERT_EQ(asked_.size(), 1u);
  io_->context.run_one();  // the timer's
  asked_[0](std::vector<std::string>{"127.0.0.1"});
  io_->context.restart();
  io_->context.run_one();
  EXPECT_FALSE(attempt.connection->socket().is_open());
  EXPECT_EQ(attempt.dial->wait().error().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace rubato::net
