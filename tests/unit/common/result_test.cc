#include "common/result.h"

#include <gtest/gtest.h>

namespace rubato {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return Error(Code::kInvalid, "odd");
  return n / 2;
}

Result<int> quarter(int n) {
  TRY(const int h, half(n));
  return half(h);
}

Status check_even(int n) {
  TRY_OK([&]() -> Status {
    if (n % 2 != 0) return Error(Code::kConflict, "odd");
    return ok();
  }());
  return ok();
}

TEST(Result, TryBindsOrReturns) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(6).error().code(), Code::kInvalid);
  EXPECT_EQ(quarter(5).value_or(-1), -1);
  EXPECT_TRUE(check_even(2).ok());
  EXPECT_EQ(check_even(3).error().code(), Code::kConflict);
}

TEST(Result, ErrorKeepsReasonAndGainsContext) {
  Error error(Code::kExhausted, "slow down");
  error.set_reason("TooManyRequests").set_retry_after(std::chrono::milliseconds(1500));
  const Error outer = error.in("listing pods");
  EXPECT_EQ(outer.what(), "listing pods: slow down");
  EXPECT_EQ(outer.reason(), "TooManyRequests");
  EXPECT_EQ(outer.retry_after().count(), 1500);
  EXPECT_NE(outer.to_string().find("exhausted: listing pods: slow down ("), std::string::npos);
  EXPECT_NE(outer.to_string().find("result_test.cc:"), std::string::npos);
}

TEST(Result, EveryCodeSaysHowToRetry) {
  EXPECT_EQ(retry_class(Code::kInvalid), Retry::kNever);
  EXPECT_EQ(retry_class(Code::kConflict), Retry::kNow);
  EXPECT_EQ(retry_class(Code::kUnavailable), Retry::kBackoff);
  EXPECT_EQ(retry_class(Code::kExhausted), Retry::kAfter);
}

TEST(ResultDeathTest, ValueOfAnErrorAborts) {
  EXPECT_DEATH((void)half(1).value(), "value\\(\\) of invalid: odd");
  EXPECT_DEATH(CHECK_EQ(1, 2), "1 == 2 \\(1 vs 2\\)");
}

}  // namespace
}  // namespace rubato
