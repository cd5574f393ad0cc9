#include "tests/unit/apiserver/memory/fixture.h"

#include <gtest/gtest.h>

namespace rubato::kube::testing {
namespace {

using json::Value;

std::string line(const WatchItem& item) {
  static const char* const kNames[] = {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"};
  return std::string(kNames[static_cast<int>(item.type)]) + " " + name_of(item.object);
}

std::vector<std::string> drain(Watcher& watcher) {
  std::vector<std::string> out;
  while (true) {
    auto item = watcher.poll();
    if (!item.ok()) {
      out.push_back(item.error().reason);
      return out;
    }
    if (!item.value()) return out;
    out.push_back(line(*item.value()));
  }
}

class WatchTest : public ::testing::Test, protected ServerFixture {};

TEST_F(WatchTest, ASelectorTurnsChangesIntoComingAndGoing) {
  WatchRequest request;
  request.label_selector = "on=yes";
  request.resource_version = std::to_string(server.resource_version());
  auto watcher = server.watch(kWidget, request);
  ASSERT_TRUE(watcher.ok());
  make(kWidget, widget("a"));
  const auto label = [&](const char* text) {
    ASSERT_TRUE(
        server.patch(kWidget, {"default", "a"}, PatchType::kMerge, json::parse(text).value()).ok());
  };
  label(R"({"metadata":{"labels":{"on":"yes"}}})");
  label(R"({"spec":{"replicas":2}})");
  label(R"({"metadata":{"labels":{"on":null}}})");
  label(R"({"metadata":{"labels":{"on":"yes"}}})");
  ASSERT_TRUE(server.remove(kWidget, {"default", "a"}).ok());
  EXPECT_EQ(drain(**watcher), (std::vector<std::string>{"ADDED a", "MODIFIED a", "DELETED a",
                                                        "ADDED a", "DELETED a"}));
}

TEST_F(WatchTest, TooOldAVersionIsExpired) {
  ServerOptions options;
  options.history_events = 4;
  MemoryServer small(clock, options);
  for (int i = 0; i < 8; ++i)
    ASSERT_TRUE(small
                    .create(types::kConfigMap, "default",
                            Value::object(
                                {{"metadata", Value::object({{"name", "c" + std::to_string(i)}})}}))
                    .ok());
  WatchRequest request;
  request.resource_version = "1";
  auto watcher = small.watch(types::kConfigMap, request);
  ASSERT_TRUE(watcher.ok());
  EXPECT_EQ(drain(**watcher), std::vector<std::string>{"Expired"});
  request.resource_version = std::to_string(small.resource_version() - 4);
  watcher = small.watch(types::kConfigMap, request);
  EXPECT_EQ(drain(**watcher).size(), 4U);
}

TEST_F(WatchTest, AVersionFromTheFutureIsExpired) {
  WatchRequest request;
  request.resource_version = std::to_string(server.resource_version() + 5);
  const auto watcher = server.watch(kWidget, request);
  ASSERT_FALSE(watcher.ok());
  EXPECT_EQ(watcher.error().code, 410);
  request.resource_version = "none";
  EXPECT_EQ(server.watch(kWidget, request).error().code, 400);
  request.resource_version = std::to_string(server.resource_version());
  EXPECT_TRUE(server.watch(kWidget, request).ok());
}

TEST_F(WatchTest, BookmarksComeWithTimeAndMarkTheInitialEvents) {
  make(kWidget, widget("a"));
  WatchRequest request;
  request.send_initial_events = true;
  request.match = "NotOlderThan";
  request.bookmarks = true;
  auto watcher = server.watch(kWidget, request);
  ASSERT_TRUE(watcher.ok());
  EXPECT_EQ(line(*watcher.value()->poll().value()), "ADDED a");
  const auto mark = watcher.value()->poll();
  EXPECT_EQ(
      mark.value()->object["metadata"]["annotations"]["k8s.io/initial-events-end"].string_or(""),
      "true");
  EXPECT_FALSE(watcher.value()->poll().value().has_value());
  make(types::kPod, pod("unrelated"));
  clock.advance(61s);
  const auto bookmark = watcher.value()->poll();
  ASSERT_TRUE(bookmark.value().has_value());
  EXPECT_EQ(resource_version_of(bookmark.value()->object),
            std::to_string(server.resource_version()));
}

TEST_F(WatchTest, PagesShowOneMoment) {
  for (const char* name : {"a", "b", "c"}) make(kWidget, widget(name));
  ListOptions options;
  options.limit = 2;
  const auto first = server.list(kWidget, "default", options);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->remaining, 1);
  ASSERT_TRUE(server.remove(kWidget, {"default", "c"}).ok());
  options.continue_token = first->continue_token;
  const auto second = server.list(kWidget, "default", options);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(name_of(second->items.at(0)), "c");
  EXPECT_EQ(second->resource_version, first->resource_version);
  options.continue_token = "99";
  EXPECT_EQ(server.list(kWidget, "default", options).error().code, 410);
}

}  // namespace
}  // namespace rubato::kube::testing
