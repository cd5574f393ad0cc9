#include "operator/control/metrics_access.h"

#include <atomic>
#include <future>
#include <thread>

#include <gtest/gtest.h>

namespace rubato::control {
namespace {

using json::Value;

// Reviews: the token "good" is of an account that may, "poor" of one that may not, others of
// nobody.
class FakeReviewer : public kube::Client {
 public:
  std::atomic<int> asked{0};
  std::atomic<bool> away{false};
  std::promise<void>* hold = nullptr;  // the first question waits for it

  Result<Value> create(const kube::ResourceType& type, const std::string&, const Value& object,
                       const kube::WriteOptions&) override {
    if (asked++ == 0 && hold != nullptr) hold->get_future().wait();
    if (away) return Error(Code::kUnavailable, "away");
    const Value& spec = object["spec"];
    Value status = Value::object({});
    if (type.kind == "TokenReview") {
      const std::string token = spec["token"].string_or("");
      const bool known = token == "good" || token == "poor";
      status.set("authenticated", known);
      if (known) status.set("user", Value::object({{"username", token}}));
    } else {
      const Value& url = spec["nonResourceAttributes"];
      EXPECT_EQ(url["path"].string_or(""), "/metrics");
      EXPECT_EQ(url["verb"].string_or(""), "get");
      status.set("allowed", spec["user"].string_or("") == "good");
    }
    return Value::object({{"status", std::move(status)}});
  }
  Result<Value> get(const kube::ResourceType&, const kube::Key&, const std::string&) override {
    return unasked();
  }
  Result<kube::ObjectList> list(const kube::ResourceType&, const std::string&,
                                const kube::ListOptions&) override {
    return unasked();
  }
  Result<std::unique_ptr<kube::Watch>> watch(const kube::ResourceType&, const std::string&,
                                             const kube::WatchOptions&) override {
    return unasked();
  }
  Result<Value> update(const kube::ResourceType&, const Value&,
                       const kube::WriteOptions&) override {
    return unasked();
  }
  Result<Value> patch(const kube::ResourceType&, const kube::Key&, kube::PatchType, const Value&,
                      const kube::WriteOptions&) override {
    return unasked();
  }
  Status remove(const kube::ResourceType&, const kube::Key&, const kube::DeleteOptions&) override {
    return unasked();
  }

 private:
  static Error unasked() { return {Code::kInternal, "only reviews are asked for"}; }
};

class MetricsAccessTest : public ::testing::Test {
 protected:
  // The status of the refusal; 200: it may.
  int decide(const std::string& authorization) {
    std::promise<int> answer;
    access_->decide({"/metrics", authorization}, [&](std::optional<net::HttpResponse> refusal) {
      answer.set_value(refusal ? refusal->status : 200);
    });
    return answer.get_future().get();
  }

  ThreadExecutor executor_;
  Metrics metrics_;
  FakeReviewer server_;
  std::optional<MetricsAccess> access_{std::in_place, server_, executor_, metrics_};
};

TEST_F(MetricsAccessTest, ATokenAndTheRightAreNeeded) {
  EXPECT_EQ(decide(""), 401);
  EXPECT_EQ(decide("Basic Z29vZA=="), 401);
  EXPECT_EQ(decide("Bearer "), 401);
  EXPECT_EQ(decide("Bearer " + std::string(kTokenBytesMost + 1, 'x')), 401);
  EXPECT_EQ(server_.asked, 0);
  EXPECT_EQ(decide("Bearer nobody"), 401);
  EXPECT_EQ(decide("Bearer poor"), 403);
  EXPECT_EQ(decide("Bearer good"), 200);
  EXPECT_NE(metrics_.expose().find("rubato_metrics_refused_total{code=\"403\"} 1"),
            std::string::npos);
}

TEST_F(MetricsAccessTest, AnAnswerIsRememberedButNotThatNobodyAnswered) {
  server_.away = true;
  EXPECT_EQ(decide("Bearer good"), 503);
  server_.away = false;
  EXPECT_EQ(decide("Bearer good"), 200);
  const int asked = server_.asked;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(decide("Bearer good"), 200);
  EXPECT_EQ(server_.asked, asked);
}

TEST_F(MetricsAccessTest, AFloodOfTokensIsBoundedAndAllAreAnswered) {
  std::promise<void> hold;
  server_.hold = &hold;
  std::atomic<int> answered{0};
  std::atomic<int> sent_away{0};
  const auto ask = [&](int i) {
    access_->decide({"/metrics", "Bearer t" + std::to_string(i)},
                    [&](std::optional<net::HttpResponse> refusal) {
                      ++answered;
                      if (refusal && refusal->status == 503) ++sent_away;
                    });
  };
  for (int i = 0; i < 1000; ++i) ask(i);
  EXPECT_GE(answered, 1000 - static_cast<int>(kQuestionsMost) - 1);
  EXPECT_EQ(answered, sent_away);
  hold.set_value();
  access_.reset();  // refuses who still waits
  EXPECT_EQ(answered, 1000);
}

}  // namespace
}  // namespace rubato::control
