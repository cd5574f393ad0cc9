// Callers that say nothing; what a log looks like is for localnode_pods_test.
#include "tools/localnode/log_server.h"

#include "apiserver/memory/memory_client.h"
#include "common/log.h"

#include <atomic>
#include <cerrno>
#include <vector>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

namespace rubato::localnode {
namespace {

class LogServerTest : public ::testing::Test {
 protected:
  ~LogServerTest() override {
    for (const int caller : callers_) ::close(caller);
  }
  void serve(Duration limit) {
    server_ = std::make_unique<LogServer>(executor_, node_, limit);
    port_ = server_->listen("127.0.0.1", 0, "").value();
    server_->start();
  }
  int make_caller() {
    callers_.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return callers_.back();
  }
  void call(int caller) const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port_));
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    const auto* at = reinterpret_cast<const sockaddr*>(&address);  // NOLINT
    ASSERT_EQ(::connect(caller, at, sizeof address), 0);
  }
  // Waits until the server closes, as long as the test may take.
  static bool is_dropped(int caller) {
    char byte = 0;
    return ::recv(caller, &byte, 1, 0) <= 0;
  }

  ThreadExecutor executor_;
  kube::MemoryServer api_{executor_.clock()};
  kube::MemoryClient client_{api_, executor_};
  Metrics metrics_;
  NodeAgent node_{executor_, client_, metrics_, {.name = "n1", .root = "/nowhere"}};
  std::unique_ptr<LogServer> server_;
  int port_ = 0;
  std::vector<int> callers_;
};

TEST_F(LogServerTest, SilentCallersAreDropped) {
  serve(100ms);
  for (std::size_t i = 0; i < kLogReadersMax; ++i) call(make_caller());
  for (const int caller : callers_) EXPECT_TRUE(is_dropped(caller));
}

TEST_F(LogServerTest, ItsEndWaitsForNoCaller) {
  serve(1h);
  for (int i = 0; i < 3; ++i) call(make_caller());
  server_.reset();
  for (const int caller : callers_) EXPECT_TRUE(is_dropped(caller));
}

TEST_F(LogServerTest, GoesOnWhenDescriptorsAreThereAgain) {
  std::atomic<int> failures = 0;
  set_log_sink([&](LogLevel, std::string_view, std::string_view text) {
    failures += text.find("Too many open files") != std::string_view::npos;
  });
  serve(100ms);
  const int caller = make_caller();
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{static_cast<rlim_t>(::dup(caller)), before.rlim_max};  // what is open stays
  callers_.push_back(static_cast<int>(none.rlim_cur));
  ::setrlimit(RLIMIT_NOFILE, &none);
  call(caller);
  const MonoTime deadline = executor_.now() + 60s;
  while (failures == 0 && executor_.now() < deadline) executor_.sleep_for(1ms);
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_GT(failures.load(), 0);
  EXPECT_TRUE(is_dropped(caller));  // so it was let in
  const int next = make_caller();
  call(next);
  EXPECT_TRUE(is_dropped(next));
  server_.reset();
  set_log_sink({});
}

}  // namespace
}  // namespace rubato::localnode
