#include "tools/localnode/pod_folders.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

namespace rubato::localnode {
namespace {

namespace fs = std::filesystem;

struct PodFoldersTest : ::testing::Test {
  PodFoldersTest() {
    char path[] = "/tmp/rubato-pods-XXXXXX";
    root = mkdtemp(path);
  }
  ~PodFoldersTest() override { fs::remove_all(root); }
  std::string pod(const std::string& uid) const { return root + "/pods/" + uid; }
  void add(const std::string& uid) const {
    fs::create_directories(pod(uid) + "/volumes/secret");
    fs::create_directories(pod(uid) + "/root");
    for (const char* file : {"/volumes/secret/token", "/worker.json", "/worker.log"})
      std::ofstream(pod(uid) + file) << "x";
  }
  std::string root;
};

TEST_F(PodFoldersTest, AfterAPowerCutOnlyLogsAreLeft) {
  clear_pod_folders(root);  // a node that never ran
  add("a");
  add("b");
  clear_pod_folders(root);
  for (const char* uid : {"a", "b"}) {
    EXPECT_TRUE(fs::exists(pod(uid) + "/worker.log"));
    EXPECT_EQ(std::distance(fs::directory_iterator(pod(uid)), fs::directory_iterator()), 1);
  }
}

TEST_F(PodFoldersTest, OfPodsThatAreGoneTheLastStay) {
  const auto now = fs::file_time_type::clock::now();
  int age_s = 0;
  for (const char* uid : {"last", "present", "second", "third", "old"}) {
    add(uid);
    fs::last_write_time(pod(uid), now - std::chrono::seconds(age_s++));
  }
  remove_gone_pods(root, {"present"}, 2);
  EXPECT_TRUE(fs::exists(pod("last")) && fs::exists(pod("present")) && fs::exists(pod("second")));
  EXPECT_FALSE(fs::exists(pod("third")) || fs::exists(pod("old")));
}

}  // namespace
}  // namespace rubato::localnode
