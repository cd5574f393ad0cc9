// Requests and replies between the engine's thread and the script's.
#include "worker/pytorch/request_queue.h"

#include "common/json.h"

#include <array>
#include <thread>

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = 10s;  // of every wait of these tests
const SystemClock kClock;

// The script's thread: answers one request with `reply`, and gives the request.
json::Value answer(RequestQueue& queue, const std::string& reply) {
  const auto request = queue.next(kLimit);
  if (!request) return {};
  queue.reply(reply);
  return json::parse(*request).value();
}

TEST(RequestQueueTest, ARequestIsAnsweredByTheScript) {
  RequestQueue queue(kClock);
  Result<MicroBatchLoss> loss = Error(Code::kInternal, "");
  std::thread engine([&] {
    const std::array<MicroBatch, 2> ahead{{{3, 2, {7, 1}}, {4, 1, {0, 8}}}};
    loss = queue.compute({3, 1, {5, 9}}, ahead);
  });
  const json::Value request = answer(queue, R"({"loss": 1.5, "weight": 7})");
  engine.join();
  EXPECT_EQ(json::dump(request),
            R"({"kind":"compute","step":3,"micro":1,"ids":[5,9],"ahead":[)"
            R"({"step":3,"micro":2,"ids":[7,1]},{"step":4,"micro":1,"ids":[0,8]}]})");
  EXPECT_EQ(loss->loss, 1.5);
  EXPECT_EQ(loss->weight, 7);
}

TEST(RequestQueueTest, AScriptEndsItsJobByItsAnswer) {
  RequestQueue queue(kClock);
  for (const bool ends : {false, true}) {
    Result<MicroBatchLoss> loss = Error(Code::kInternal, "");
    std::thread engine([&] { loss = queue.compute({}, {}); });
    answer(queue, ends ? R"({"loss": 1, "ends": true})" : R"({"loss": 1})");
    engine.join();
    EXPECT_EQ(loss->ends, ends);
  }
}

TEST(RequestQueueTest, WhatIsNotFiniteOrAnErrorComesBackAsThat) {
  RequestQueue queue(kClock);
  for (const char* reply : {R"({"loss": "NaN"})", R"({"error": "ValueError: no", "reason": "Odd"})",
                            R"({"error": "ValueError: no"})", "nonsense"}) {
    Result<MicroBatchLoss> loss = Error(Code::kInternal, "");
    std::thread engine([&] { loss = queue.compute({}, {}); });
    answer(queue, reply);
    engine.join();
    if (std::string_view(reply).find("NaN") != std::string_view::npos) {
      EXPECT_NE(loss->loss, loss->loss);
    } else if (std::string_view(reply).find("Odd") != std::string_view::npos) {
      EXPECT_EQ(loss.error().reason(), "Odd");
    } else if (reply[0] == '{') {
      EXPECT_EQ(loss.error().reason(), "ProgramFailed");
      EXPECT_EQ(loss.error().what(), "ValueError: no");
    } else {
      EXPECT_FALSE(loss.ok());
    }
  }
}

TEST(RequestQueueTest, TheEndComesLastAndAStoppedScriptIsWaitedForByNobody) {
  RequestQueue queue(kClock);
  EXPECT_EQ(queue.next(1ms), std::nullopt);
  Status bound = ok();
  std::thread engine([&] { bound = queue.init(); });
  EXPECT_TRUE(queue.next(kLimit).has_value());
  queue.stop();  // without an answer
  engine.join();
  EXPECT_EQ(bound.error().code(), Code::kCancelled);
  queue.wait_until_idle();
  queue.end(true, "retired");
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(queue.next(kLimit), R"({"kind":"end","finished":true,"reason":"retired"})");
}

// What a script does behind its loop is its own affair: nothing is asked, and nobody waits for it.
TEST(RequestQueueTest, AfterTheEndNothingIsAsked) {
  RequestQueue queue(kClock);
  EXPECT_FALSE(queue.is_over());
  queue.end(true, "");
  EXPECT_TRUE(queue.is_over());
  EXPECT_EQ(queue.loaded(1).error().code(), Code::kCancelled) << "it may hear of it at any moment";
  queue.end(false, "the first word holds");
  EXPECT_EQ(queue.next(kLimit), R"({"kind":"end","finished":true,"reason":""})");
  queue.wait_until_idle();
  EXPECT_EQ(queue.validate(0).error().code(), Code::kCancelled);
}

// While the script is busy between two steps, the engine leaves its memory alone.
TEST(RequestQueueTest, TheEngineWaitsUntilTheScriptIsIdle) {
  RequestQueue queue(kClock);
  std::atomic<bool> was_idle{false};
  std::thread engine([&] {
    queue.wait_until_idle();
    was_idle = true;
    EXPECT_TRUE(queue.loaded(4).ok());
  });
  EXPECT_FALSE(was_idle);
  answer(queue, "{}");
  engine.join();
  EXPECT_TRUE(was_idle);
}

class SetClock : public Clock {
 public:
  MonoTime now() const override { return MonoTime(time); }
  WallTime wall() const override { return {}; }
  Duration time = 1h;
};

// While it waits for the engine it need not show that it lives; the engine does.
TEST(RequestQueueTest, ABusyScriptShowsThatItLivesForAWhile) {
  SetClock clock;
  RequestQueue queue(clock);
  const auto after = [&](Duration time) {
    clock.time += time;
    return queue.signs_of_life();
  };
  EXPECT_EQ(after(1h), 0u);  // not begun
  EXPECT_EQ(queue.next(1ms), std::nullopt);
  EXPECT_EQ(after(30s), 30u);
  EXPECT_EQ(after(1h), 120u);  // it answers a request, as far as can be seen
  queue.reply("{}");
  EXPECT_EQ(after(60s), 180u);
  EXPECT_EQ(after(1h), 720u);  // the loop's body
  EXPECT_EQ(queue.next(1ms), std::nullopt);
  EXPECT_EQ(queue.signs_of_life(), 720u);
}

TEST(RequestQueueTest, TheSetupIsReadWhole) {
  RequestQueue queue(kClock);
  Result<TorchSetup> setup = Error(Code::kInternal, "");
  std::thread engine([&] { setup = queue.configure(R"({"seed":3})"); });
  answer(
      queue,
      R"({"micro_batch":2,"micro_batches":8,"samples":100,"tokens_per_step":16,"seed":3,)"
      R"("validation_micro_batches":1,"max_grad_norm":0.5,"ahead":4,"extra_bytes":128,"fingerprint":"f",)"
      R"("config":"{}","tensors":[{"name":"w","dtype":"F32","shape":[2,3],"group":"trained"},)"
      R"({"name":"b","dtype":"F32","shape":[],"group":"model","in_state_dict":false}]})");
  engine.join();
  EXPECT_EQ(setup->micro_batches, 8);
  EXPECT_EQ(setup->max_grad_norm, 0.5);
  EXPECT_EQ(setup->ahead, 4u);
  EXPECT_EQ(setup->tensors.at(0).count(), 6);
  EXPECT_EQ(setup->tensors.at(0).bytes(), 24u);
  EXPECT_TRUE(setup->tensors.at(0).in_state_dict);
  EXPECT_FALSE(setup->tensors.at(1).in_state_dict);

  std::thread again([&] { setup = queue.configure("{}"); });
  answer(queue, R"({"tensors":[{"name":"w","dtype":"F32","shape":[2],"group":"odd"}]})");
  again.join();
  EXPECT_EQ(setup.error().what(), "no group of tensors is called odd");
}

}  // namespace
}  // namespace rubato::worker
