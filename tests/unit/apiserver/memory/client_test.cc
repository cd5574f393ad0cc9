#include "apiserver/memory/memory_client.h"
#include "tests/unit/apiserver/memory/fixture.h"

#include <gtest/gtest.h>

namespace rubato::kube::testing {
namespace {

class Faults : public FaultHook {
 public:
  std::optional<Error> before(const Operation& operation) override {
    return operation.verb == refuse_before ? refuse() : std::nullopt;
  }
  std::optional<Error> after(const Operation& operation) override {
    return operation.verb == refuse_after ? refuse() : std::nullopt;
  }
  std::optional<Verb> refuse_before;
  std::optional<Verb> refuse_after;

 private:
  static std::optional<Error> refuse() { return Error(Code::kUnavailable, "planned"); }
};

class MemoryClientTest : public ::testing::Test, protected ServerFixture {
 protected:
  ThreadExecutor executor;
  Faults faults;
  MemoryClient client{server, executor, &faults};
  MonoTime soon() { return executor.now() + 10s; }
};

TEST_F(MemoryClientTest, AWaitingWatchWakesOnAChange) {
  auto watch = client.watch(kWidget, "default", {});
  ASSERT_TRUE(watch.ok());
  Task writer = executor.spawn("writer", [&](std::stop_token) { make(kWidget, widget("a")); });
  const auto event = watch.value()->next(soon());
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(name_of(event->value), "a");
  EXPECT_EQ(watch.value()->next(executor.now()).error().code(), Code::kTimeout);
}

TEST_F(MemoryClientTest, StopAndDisconnectEndAWaitingWatch) {
  auto watch = client.watch(kWidget, "default", {});
  Task stopper = executor.spawn("stopper", [&](std::stop_token) { watch.value()->stop(); });
  EXPECT_EQ(watch.value()->next(soon()).error().code(), Code::kCancelled);
  auto other = client.watch(kWidget, "default", {});
  Task cutter = executor.spawn("cutter", [&](std::stop_token) { client.disconnect(); });
  EXPECT_EQ(other.value()->next(soon()).error().code(), Code::kUnavailable);
  EXPECT_EQ(client.get(kWidget, {"default", "a"}, "").error().code(), Code::kUnavailable);
  client.reconnect();
  EXPECT_EQ(client.get(kWidget, {"default", "a"}, "").error().code(), Code::kNotFound);
}

TEST_F(MemoryClientTest, AFaultAfterTheEffectLosesOnlyTheAnswer) {
  faults.refuse_before = Verb::kCreate;
  EXPECT_FALSE(client.create(kWidget, "default", widget("a"), {}).ok());
  EXPECT_FALSE(server.get(kWidget, {"default", "a"}).ok());
  faults.refuse_before.reset();
  faults.refuse_after = Verb::kCreate;
  EXPECT_FALSE(client.create(kWidget, "default", widget("a"), {}).ok());
  EXPECT_TRUE(server.get(kWidget, {"default", "a"}).ok());
}

TEST_F(MemoryClientTest, ErrorsCarryTheServersReason) {
  make(kWidget, widget("a"));
  const auto twice = client.create(kWidget, "default", widget("a"), {});
  EXPECT_EQ(twice.error().code(), Code::kAlreadyExists);
  json::Value patch = json::parse(R"([{"op":"test","path":"/spec/image","value":"no"}])").value();
  const auto failed = client.patch(kWidget, {"default", "a"}, PatchType::kJson, patch, {});
  EXPECT_EQ(failed.error().code(), Code::kConflict);
  EXPECT_EQ(failed.error().reason(), "TestFailed");
}

}  // namespace
}  // namespace rubato::kube::testing
