#include "apiserver/memory/journal.h"

#include "tests/unit/apiserver/memory/fixture.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace rubato::kube::testing {
namespace {

class JournalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/rubato-journal-XXXXXX";
    folder_ = ::mkdtemp(pattern);
    path_ = folder_ + "/state";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  ManualClock clock_;
  std::string folder_;
  std::string path_;
};

TEST_F(JournalTest, ObjectsVersionsAndTypesSurviveARestart) {
  std::uint64_t version = 0;
  json::Value kept;
  {
    MemoryServer server(clock_);
    auto journal = Journal::attach(server, path_);
    ASSERT_TRUE(journal.ok());
    ASSERT_TRUE(server.create(types::kCustomResourceDefinition, "", widget_crd()).ok());
    kept = server.create(kWidget, "default", widget("kept")).value().object;
    ASSERT_TRUE(server.create(kWidget, "default", widget("gone")).ok());
    ASSERT_TRUE(server.remove(kWidget, {"default", "gone"}).ok());
    version = server.resource_version();
  }
  std::ofstream(path_, std::ios::app) << R"({"kind":"pods","key":"default/torn","v":9)";
  MemoryServer server(clock_);
  auto journal = Journal::attach(server, path_);
  ASSERT_TRUE(journal.ok()) << journal.error().to_string();
  EXPECT_EQ(server.resource_version(), version);
  EXPECT_TRUE(server.get(kWidget, {"default", "kept"}).value() == kept);
  EXPECT_FALSE(server.get(kWidget, {"default", "gone"}).ok());
  WatchRequest old;
  old.resource_version = std::to_string(version - 1);
  EXPECT_EQ(server.watch(kWidget, old).value()->poll().error().code, 410);
}

TEST_F(JournalTest, ServicesOfTwoLivesHaveTwoAddresses) {
  const auto address = [](MemoryServer& server, const std::string& name) {
    const json::Value port = json::Value::object({{"port", 80}});
    const json::Value service = json::Value::object(
        {{"metadata", json::Value::object({{"name", name}})},
         {"spec", json::Value::object({{"ports", json::Value::array({port})}})}});
    const auto made = server.create(types::kService, "default", service);
    return made.ok() ? made->object["spec"]["clusterIP"].string_or("") : made.error().message;
  };
  std::string first;
  {
    MemoryServer server(clock_);
    const auto journal = Journal::attach(server, path_);
    ASSERT_TRUE(journal.ok());
    first = address(server, "a");
  }
  MemoryServer server(clock_);
  const auto journal = Journal::attach(server, path_);
  ASSERT_TRUE(journal.ok());
  const std::string second = address(server, "b");
  EXPECT_TRUE(first.starts_with("10.96.") && second.starts_with("10.96.")) << first << second;
  EXPECT_NE(first, second);
}

TEST_F(JournalTest, CompactsWhatHasGrown) {
  MemoryServer server(clock_);
  auto journal = Journal::attach(server, path_);
  ASSERT_TRUE(journal.ok());
  ASSERT_TRUE(server.create(types::kCustomResourceDefinition, "", widget_crd()).ok());
  ASSERT_TRUE(server.create(kWidget, "default", widget("a")).ok());
  for (int i = 0; i < 5000; ++i) {
    const json::Value patch =
        json::Value::object({{"status", json::Value::object({{"replicas", i}})}});
    WriteOptions status;
    status.subresource = "status";
    ASSERT_TRUE(server.patch(kWidget, {"default", "a"}, PatchType::kMerge, patch, status).ok());
  }
  const auto before = std::filesystem::file_size(path_);
  ASSERT_TRUE((*journal)->flush().ok());
  EXPECT_LT(std::filesystem::file_size(path_), before / 10);
  ASSERT_TRUE(server.remove(kWidget, {"default", "a"}).ok());
  MemoryServer again(clock_);
  ASSERT_TRUE(Journal::attach(again, path_).ok());
  EXPECT_EQ(again.resource_version(), server.resource_version());
}

TEST_F(JournalTest, RefusesAFileThatIsNotOne) {
  std::ofstream(path_) << "{\"something\":1}\n{\"else\":2}\n";
  MemoryServer server(clock_);
  EXPECT_EQ(Journal::attach(server, path_).error().code(), Code::kInvalid);
}

}  // namespace
}  // namespace rubato::kube::testing
