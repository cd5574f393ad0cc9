#include "apiserver/memory/journal.h"

#include "tests/unit/apiserver/memory/fixture.h"

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace rubato::kube::testing {
namespace {

// While it lives no file grows beyond so many bytes: a disk without room.
class NoRoom {
 public:
  explicit NoRoom(std::uintmax_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~NoRoom() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  NoRoom(const NoRoom&) = delete;
  NoRoom& operator=(const NoRoom&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

// A disk that gives the first bytes of a file and fails at the rest, with an error or in silence.
class BadDisk : public PosixFileSystem {
 public:
  explicit BadDisk(bool is_silent) : is_silent_(is_silent) {}
  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    TRY(auto file, PosixFileSystem::open(path, mode));
    return std::unique_ptr<File>(std::make_unique<BadFile>(std::move(file), is_silent_));
  }

 private:
  class BadFile : public File {
   public:
    BadFile(std::unique_ptr<File> file, bool is_silent)
        : file_(std::move(file)), is_silent_(is_silent) {}
    Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> to) override {
      if (!is_silent_) return Error(Code::kUnavailable, "reading: Input/output error");
      return file_->read_at(offset, to.first(to.size() / 2));
    }
    Status write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
      return file_->write_at(offset, bytes);
    }
    Result<std::uint64_t> size() const override { return file_->size(); }
    Status sync() override { return file_->sync(); }

   private:
    std::unique_ptr<File> file_;
    bool is_silent_;
  };
  bool is_silent_;
};

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
  EXPECT_EQ(server.resource_version(), version + ObjectStore::kVersionBump);
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
  EXPECT_EQ(again.resource_version(), server.resource_version() + ObjectStore::kVersionBump);
}

// A life that told of more than it could keep: what comes after is above all of that, for good.
TEST_F(JournalTest, AWatchFromALifeWhoseLastWritesWereLostIsToldToListAgain) {
  std::uint64_t lost = 0;
  std::uintmax_t kept_bytes = 0;
  {
    MemoryServer server(clock_);
    const auto journal = Journal::attach(server, path_);
    ASSERT_TRUE(journal.ok());
    ASSERT_TRUE(server.create(types::kPod, "default", pod("kept")).ok());
    kept_bytes = std::filesystem::file_size(path_);
    for (int i = 0; i < 5; ++i)
      ASSERT_TRUE(server.create(types::kPod, "default", pod("lost-" + std::to_string(i))).ok());
    lost = server.resource_version();
  }
  std::filesystem::resize_file(path_, kept_bytes);  // a power cut
  WatchRequest from;
  from.resource_version = std::to_string(lost);
  std::uint64_t second = 0;
  {
    MemoryServer server(clock_);
    const auto journal = Journal::attach(server, path_);
    ASSERT_TRUE(journal.ok());
    EXPECT_EQ(server.watch(types::kPod, from).value()->poll().error().code, 410);
    second = server.resource_version();
  }
  MemoryServer server(clock_);
  const auto journal = Journal::attach(server, path_);
  ASSERT_TRUE(journal.ok());
  EXPECT_GT(server.resource_version(), second);  // though nothing was written
  EXPECT_FALSE(server.get(types::kPod, {"default", "lost-0"}).ok());
}

TEST_F(JournalTest, AWriteThatIsNotKeptIsRefusedAndSoIsEveryOther) {
  MemoryServer server(clock_);
  auto journal = Journal::attach(server, path_);
  ASSERT_TRUE(journal.ok());
  ASSERT_TRUE(server.create(types::kPod, "default", pod("kept")).ok());
  {
    const NoRoom full(std::filesystem::file_size(path_) + 10);
    const auto refused = server.create(types::kPod, "default", pod("a"));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, 500);
    EXPECT_NE(refused.error().message.find("writing " + path_ + ": File too large"),
              std::string::npos)
        << refused.error().message;
  }
  EXPECT_FALSE(server.create(types::kPod, "default", pod("b")).ok());
  EXPECT_FALSE(server.remove(types::kPod, {"default", "kept"}).ok());
  EXPECT_FALSE(server
                   .patch(types::kPod, {"default", "kept"}, PatchType::kMerge,
                          json::parse(R"({"metadata":{"labels":{"a":"b"}}})").value())
                   .ok());
  EXPECT_TRUE(server.get(types::kPod, {"default", "kept"}).ok());
  EXPECT_FALSE((*journal)->flush().ok());
  journal->reset();
  MemoryServer again(clock_);
  const auto read = Journal::attach(again, path_);
  ASSERT_TRUE(read.ok()) << read.error().to_string();
  EXPECT_TRUE(again.get(types::kPod, {"default", "kept"}).ok());
  EXPECT_FALSE(again.get(types::kPod, {"default", "a"}).ok());
  EXPECT_TRUE(again.create(types::kPod, "default", pod("b")).ok());
}

TEST_F(JournalTest, WhatTheDiskDoesNotGiveIsNotCutOff) {
  {
    MemoryServer server(clock_);
    const auto journal = Journal::attach(server, path_);
    ASSERT_TRUE(journal.ok());
    ASSERT_TRUE(server.create(types::kPod, "default", pod("kept")).ok());
  }
  const auto size = std::filesystem::file_size(path_);
  for (const bool is_silent : {false, true}) {
    BadDisk disk(is_silent);
    MemoryServer server(clock_);
    const auto journal = Journal::attach(server, path_, disk);
    ASSERT_FALSE(journal.ok());
    EXPECT_EQ(journal.error().code(), Code::kUnavailable);
    EXPECT_EQ(std::filesystem::file_size(path_), size);
  }
  MemoryServer server(clock_);
  ASSERT_TRUE(Journal::attach(server, path_).ok());
  EXPECT_TRUE(server.get(types::kPod, {"default", "kept"}).ok());
}

TEST_F(JournalTest, ARewriteWithoutRoomIsTriedAgainLater) {
  MemoryServer server(clock_);
  auto journal = Journal::attach(server, path_);
  ASSERT_TRUE(journal.ok());
  ASSERT_TRUE(server.create(types::kPod, "default", pod("a")).ok());
  for (std::size_t i = 0; i <= kCompactMinLines; ++i) {
    const json::Value patch = json::Value::object(
        {{"metadata",
          json::Value::object({{"labels", json::Value::object({{"n", std::to_string(i)}})}})}});
    ASSERT_TRUE(server.patch(types::kPod, {"default", "a"}, PatchType::kMerge, patch).ok());
  }
  const auto before = std::filesystem::file_size(path_);
  {
    const NoRoom full(100);
    EXPECT_TRUE((*journal)->flush().ok());
  }
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
  EXPECT_EQ(std::filesystem::file_size(path_), before);
  EXPECT_TRUE((*journal)->flush().ok());
  EXPECT_EQ(std::filesystem::file_size(path_), before);  // not at every flush
  ASSERT_TRUE(server.create(types::kPod, "default", pod("b")).ok());
  clock_.advance(kCompactRetry);
  EXPECT_TRUE((*journal)->flush().ok());
  EXPECT_LT(std::filesystem::file_size(path_), before / 10);
  journal->reset();
  MemoryServer again(clock_);
  ASSERT_TRUE(Journal::attach(again, path_).ok());
  EXPECT_TRUE(again.get(types::kPod, {"default", "b"}).ok());
}

TEST_F(JournalTest, RefusesAFileThatIsNotOne) {
  std::ofstream(path_) << "{\"something\":1}\n{\"else\":2}\n";
  MemoryServer server(clock_);
  EXPECT_EQ(Journal::attach(server, path_).error().code(), Code::kInvalid);
}

}  // namespace
}  // namespace rubato::kube::testing
