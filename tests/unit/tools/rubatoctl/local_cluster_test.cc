// What a local cluster leaves and keeps in its folder; its programs are missing, or do nothing.
#include "tools/rubatoctl/local/cluster.h"
#include "tools/rubatoctl/local/commands.h"
#include "tools/rubatoctl/local/ports.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace rubato::ctl {
namespace {

namespace fs = std::filesystem;

class LocalClusterTest : public ::testing::Test {
 protected:
  LocalClusterTest() {
    std::string name = ::testing::TempDir() + "/cluster-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    state_ = folder_ + "/state";
  }
  ~LocalClusterTest() override { fs::remove_all(folder_); }
  Result<std::unique_ptr<LocalCluster>> open(bool create) {
    LocalSettings settings;
    settings.state = state_;
    settings.programs = folder_ + "/programs";
    settings.crds = folder_;
    settings.is_interrupted = [this] { return is_interrupted_; };
    return LocalCluster::open(executor_, settings, create);
  }
  void write(const std::string& file) {
    fs::create_directories(fs::path(state_ + "/" + file).parent_path());
    std::ofstream(state_ + "/" + file) << "mine";
  }
  bool has(const std::string& file) const { return fs::exists(state_ + "/" + file); }

  ThreadExecutor executor_;
  std::string folder_;
  std::string state_;
  bool is_interrupted_ = false;
};

TEST_F(LocalClusterTest, AFolderWithOtherFilesIsRefusedAndLeftAsItIs) {
  write("notes.txt");
  fs::permissions(state_, fs::perms::owner_all | fs::perms::group_read);
  const auto refused = open(true);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kInvalid);
  EXPECT_NE(refused.error().what().find("such as notes.txt\n  What to do: "), std::string::npos)
      << refused.error().what();
  EXPECT_FALSE(has("lock"));
  EXPECT_EQ(fs::status(state_).permissions(), fs::perms::owner_all | fs::perms::group_read);
}

TEST_F(LocalClusterTest, AnEmptyFolderIsTakenAndOneWhoseFirstCommandWasInterrupted) {
  fs::create_directories(state_);
  EXPECT_TRUE(open(true).ok());
  fs::remove_all(state_);
  write("lock");
  EXPECT_EQ(open(false).error().code(), Code::kNotFound);
  EXPECT_TRUE(open(true).ok());
}

TEST_F(LocalClusterTest, ALockThatCannotBeOpenedIsNotAnotherCommand) {
  fs::create_directories(state_ + "/lock");
  const auto refused = open(true);
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(refused.error().what().starts_with("cannot lock " + state_ + "/lock: Is a directory"))
      << refused.error().what();
  fs::remove(state_ + "/lock");
  const auto first = open(true);
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(open(true).error().what().starts_with("another rubatoctl is at work"));
}

TEST_F(LocalClusterTest, AFolderThatCannotBeMadeIsNamedWithTheWayOut) {
  const auto refused_in = [this](const std::string& state, const std::string& why) {
    state_ = state;
    const auto refused = open(true);
    ASSERT_FALSE(refused.ok());
    EXPECT_TRUE(refused.error().what().starts_with(why)) << refused.error().what();
    EXPECT_NE(refused.error().what().find("\n  What to do: "), std::string::npos);
  };
  const std::string file = folder_ + "/file";
  std::ofstream(file) << "mine";
  refused_in(file + "/state", "cannot make " + file + "/state: Not a directory");
  const std::string long_name = folder_ + "/" + std::string(300, 'x');
  refused_in(long_name, "cannot look into " + long_name + ": File name too long");
}

TEST_F(LocalClusterTest, ARecordThatCannotBeWrittenSaysWhy) {
  write("lock");
  fs::create_directories(state_ + "/cluster.json.tmp");
  const auto refused = open(true);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().what().find("cluster.json.tmp: Is a directory"), std::string::npos)
      << refused.error().what();
}

TEST_F(LocalClusterTest, PurgeRemovesWhatIsTheClustersAlone) {
  open(true).value();
  write("apiserver/journal");
  write("nodes/n1/pods/uid/worker.log");
  write("mine.txt");
  ASSERT_TRUE(open(false).value()->purge().ok());
  ASSERT_TRUE(has("mine.txt"));
  EXPECT_EQ(std::distance(fs::directory_iterator(state_), fs::directory_iterator()), 1);
  fs::remove(state_ + "/mine.txt");
  ASSERT_TRUE(open(true).value()->purge().ok());
  EXPECT_FALSE(fs::exists(state_));
}

TEST_F(LocalClusterTest, AnUpThatFailedCanBeStoppedAndRepeated) {
  const Status failed = open(true).value()->up(2, 1);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.error().what().find("cannot run"), std::string::npos) << failed.error().what();
  const auto again = open(false);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->record().nodes.size(), 2u);
  EXPECT_TRUE((*again)->down(1s).ok());
  EXPECT_FALSE((*again)->up(2, 1).ok());
  EXPECT_EQ((*again)->record().nodes.size(), 2u);
}

TEST_F(LocalClusterTest, ANodeOfAFullClusterCanBeSwitchedOnAgain) {
  const auto cluster = open(true).value();
  ASSERT_FALSE(cluster->up(kNodesMax, 1).ok());  // for want of programs
  EXPECT_EQ(cluster->add_node("", std::nullopt).error().code(), Code::kExhausted);
  EXPECT_NE(cluster->add_node("n7", std::nullopt).error().what().find("does not run"),
            std::string::npos);
}

TEST_F(LocalClusterTest, AnUpThatIsInterruptedLeavesWhatItStarted) {
  const std::string program = folder_ + "/programs/rubato-apiserver";
  fs::create_directories(folder_ + "/programs");
  std::ofstream(program) << "#!/bin/sh\nexec sleep 600\n";
  fs::permissions(program, fs::perms::owner_all);
  is_interrupted_ = true;
  const auto cluster = open(true).value();
  const Status up = cluster->up(2, 1);
  ASSERT_FALSE(up.ok());
  EXPECT_EQ(up.error().code(), Code::kCancelled) << up.error().what();
  EXPECT_EQ(cluster->processes().front().name, "apiserver");
  EXPECT_TRUE(cluster->processes().front().running);
  EXPECT_TRUE(cluster->down(1s).ok());
  EXPECT_FALSE(cluster->processes().front().running);
}

TEST(StateWords, OnlyWhereItIsNotTheUsualFolder) {
  EXPECT_EQ(state_words(default_local_state()), "");
  EXPECT_EQ(state_words("/tmp/a"), " --state /tmp/a");
  EXPECT_EQ(state_words("/tmp/b/../my state"), " --state '/tmp/my state'");
}

TEST_F(LocalClusterTest, NodesGetOtherAddressesWhenSomebodyElseHasTheirs) {
  const int before = open(true).value()->record().network;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(10250);
  ASSERT_EQ(::inet_pton(AF_INET, node_address(before, 1).c_str(), &address.sin_addr), 1);
  const int other = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  // Where this fails another process has the address: that is as good.
  if (::bind(other, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)  // NOLINT
    ::listen(other, 1);
  EXPECT_FALSE(can_serve(before, {1}));
  (void)open(false).value()->up(1, 1);
  EXPECT_NE(open(false).value()->record().network, before);
  ::close(other);
}

TEST_F(LocalClusterTest, TwoThatStartAtTheSameMomentHaveTwoNetworks) {
  auto first = open(true).value();
  const int network = first->record().network;
  EXPECT_FALSE(NetworkClaim::of(network));
  state_ = folder_ + "/second";
  const auto second = open(true).value();
  EXPECT_NE(second->record().network, network);
  first.reset();
  const auto claim = NetworkClaim::of(network);
  ASSERT_TRUE(claim);
  // A cluster that was here before, and is about to start while another one is.
  state_ = folder_ + "/state";
  (void)open(false).value()->up(1, 1);
  EXPECT_NE(open(false).value()->record().network, network);
}

}  // namespace
}  // namespace rubato::ctl
