// Watches: order, selectors, where they start, how they end.
#include "tests/conformance/target.h"

namespace rubato::kube::conformance {
namespace {

using json::Value;

class Watches : public Conformance {
 protected:
  std::unique_ptr<Watch> open(const WatchOptions& options) {
    auto watch = client().watch(kWidget, ns(), options);
    EXPECT_TRUE(watch.ok()) << (watch.ok() ? "" : watch.error().to_string());
    return watch.ok() ? std::move(watch).value() : nullptr;
  }
  std::string present_version() { return client().list(kWidget, ns(), {})->resource_version; }
  void patch(const char* name, const char* body) {
    const auto done = client().patch(kWidget, key(name), PatchType::kMerge, parsed(body));
    EXPECT_TRUE(done.ok()) << done.error().to_string();
  }
};
INSTANTIATE_TEST_SUITE_P(, Watches, ::testing::ValuesIn(target_names()), name_of_target);

TEST_P(Watches, FromAVersionOnEveryChangeComesOnce) {
  make(kWidget, widget("before"));
  WatchOptions options;
  options.resource_version = present_version();
  const auto watch = open(options);
  make(kWidget, widget("a"));
  patch("a", R"({"spec":{"replicas":2}})");
  patch("a", R"({"spec":{"replicas":2}})");  // no change, no event
  ASSERT_TRUE(client().remove(kWidget, key("a")).ok());
  EXPECT_EQ(next_event(*watch), "ADDED a");
  EXPECT_EQ(next_event(*watch), "MODIFIED a");
  EXPECT_EQ(next_event(*watch), "DELETED a");
}

TEST_P(Watches, AnOldVersionReplaysHistory) {
  const std::string start = present_version();
  make(kWidget, widget("a"));
  patch("a", R"({"spec":{"replicas":2}})");
  WatchOptions options;
  options.resource_version = start;
  const auto watch = open(options);
  EXPECT_EQ(next_event(*watch), "ADDED a");
  EXPECT_EQ(next_event(*watch), "MODIFIED a");
}

TEST_P(Watches, WithoutAVersionWhatExistsComesFirst) {
  make(kWidget, widget("a"));
  make(kWidget, widget("b"));
  const auto watch = open({});
  EXPECT_EQ(next_event(*watch), "ADDED a");
  EXPECT_EQ(next_event(*watch), "ADDED b");
  make(kWidget, widget("c"));
  EXPECT_EQ(next_event(*watch), "ADDED c");
}

TEST_P(Watches, SelectorsTurnChangesIntoComingAndGoing) {
  WatchOptions options;
  options.resource_version = present_version();
  options.label_selector = "on=yes";
  const auto watch = open(options);
  make(kWidget, widget("a"));
  patch("a", R"({"metadata":{"labels":{"on":"yes"}}})");
  patch("a", R"({"spec":{"replicas":2}})");
  patch("a", R"({"metadata":{"labels":{"on":"no"}}})");
  EXPECT_EQ(next_event(*watch), "ADDED a");
  EXPECT_EQ(next_event(*watch), "MODIFIED a");
  EXPECT_EQ(next_event(*watch), "DELETED a");
}

TEST_P(Watches, ADeletionCarriesANewVersion) {
  const Value made = make(kWidget, widget("a"));
  WatchOptions options;
  options.resource_version = resource_version_of(made);
  const auto watch = open(options);
  ASSERT_TRUE(client().remove(kWidget, key("a")).ok());
  auto event = watch->next(soon());
  while (event.ok() && event->type == EventType::kBookmark) event = watch->next(soon());
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->type, EventType::kDeleted);
  EXPECT_GT(std::stoull(resource_version_of(*event->object())),
            std::stoull(resource_version_of(made)));
}

TEST_P(Watches, AVersionLongGoneIsExpired) {
  for (int i = 0; i < 10; ++i) make(kWidget, widget("a" + std::to_string(i)));
  WatchOptions options;
  options.resource_version = "1";
  auto watch = client().watch(kWidget, ns(), options);
  if (!watch.ok()) {
    EXPECT_EQ(watch.error().code(), Code::kExpired) << watch.error().to_string();
    return;
  }
  const auto event = (*watch)->next(soon());
  ASSERT_FALSE(event.ok());
  EXPECT_EQ(event.error().code(), Code::kExpired) << event.error().to_string();
}

TEST_P(Watches, TimeEndsAWatch) {
  WatchOptions options;
  options.resource_version = present_version();
  options.timeout = 1s;
  const auto watch = open(options);
  auto event = watch->next(soon());
  while (event.ok()) event = watch->next(soon());  // bookmarks
  EXPECT_EQ(event.error().code(), Code::kUnavailable) << event.error().to_string();
}

TEST_P(Watches, StopEndsAWaitingReader) {
  const auto watch = open({});
  Task stopper = executor().spawn("stopper", [&](std::stop_token) { watch->stop(); });
  auto event = watch->next(soon());
  while (event.ok()) event = watch->next(soon());  // bookmarks
  EXPECT_EQ(event.error().code(), Code::kCancelled) << event.error().to_string();
}

TEST_P(Watches, AllNamespacesAreSeenAtOnce) {
  WatchOptions options;
  options.resource_version = client().list(kWidget, "", {})->resource_version;
  options.field_selector = "metadata.namespace=" + ns();
  auto watch = client().watch(kWidget, "", options);
  ASSERT_TRUE(watch.ok());
  make(kWidget, widget("a"));
  EXPECT_EQ(next_event(**watch), "ADDED a");
}

}  // namespace
}  // namespace rubato::kube::conformance
