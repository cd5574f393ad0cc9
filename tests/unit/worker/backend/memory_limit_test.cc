// The kernel's files as machines and pods show them, in a made-up folder.
#include "worker/backend/cpu/memory_limit.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <stdlib.h>

namespace rubato::worker::cpu {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

class MemoryLimitTest : public ::testing::Test {
 protected:
  MemoryLimitTest() {
    char path[] = "/tmp/rubato-memory-XXXXXX";
    root_ = mkdtemp(path);
    put("/proc/meminfo", "MemTotal:        8192 kB\nMemFree:         1024 kB\n");
  }
  ~MemoryLimitTest() override { std::filesystem::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void in_cgroup(const std::string& text) { put("/proc/self/cgroup", text); }
  MemoryLimit limit() { return memory_limit(files_, root_); }

  PosixFileSystem files_;
  std::string root_;
};

TEST_F(MemoryLimitTest, OfTheMachine) {
  EXPECT_EQ(limit().bytes, 8 * kMiB);
  EXPECT_EQ(limit().source, "the machine's memory");
  in_cgroup("0::/user.slice\n");
  EXPECT_EQ(limit().bytes, 8 * kMiB);
}

TEST_F(MemoryLimitTest, SwapIsBeside) {
  put("/proc/meminfo", "MemTotal:        8192 kB\nSwapTotal:       2048 kB\n");
  EXPECT_EQ(limit().bytes, 10 * kMiB);
  EXPECT_EQ(limit().source, "the machine's memory, and swap");
  in_cgroup("0::/\n");
  put("/sys/fs/cgroup/memory.max", "1048576\n");
  EXPECT_EQ(limit().bytes, 3 * kMiB);
  put("/proc/meminfo", "MemTotal:        8192 kB\nSwapTotal:          0 kB\n");
  EXPECT_EQ(limit().bytes, kMiB);
}

TEST_F(MemoryLimitTest, OfAPodInV2) {
  in_cgroup("0::/\n");
  put("/sys/fs/cgroup/memory.max", "1048576\n");
  EXPECT_EQ(limit().bytes, kMiB);
  EXPECT_EQ(limit().source, root_ + "/sys/fs/cgroup/memory.max");
  put("/sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(limit().bytes, 8 * kMiB);
}

TEST_F(MemoryLimitTest, TheLeastOfAllLevels) {
  in_cgroup("0::/kubepods/pod1/worker\n");
  put("/sys/fs/cgroup/kubepods/memory.max", "4194304\n");
  put("/sys/fs/cgroup/kubepods/pod1/memory.max", "2097152\n");
  put("/sys/fs/cgroup/kubepods/pod1/worker/memory.max", "max\n");
  put("/sys/fs/cgroup/kubepods/pod2/memory.max", "4096\n");
  EXPECT_EQ(limit().bytes, 2 * kMiB);
  EXPECT_EQ(limit().source, root_ + "/sys/fs/cgroup/kubepods/pod1/memory.max");
}

TEST_F(MemoryLimitTest, OfV1) {
  in_cgroup("4:memory:/docker/a\n3:cpuset:/\n0::/\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limit().bytes, 8 * kMiB);
  put("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "3145728\n");
  put("/sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes", "1048576");
  EXPECT_EQ(limit().bytes, kMiB);
  in_cgroup("4:hugetlb,memory:/docker\n");
  EXPECT_EQ(limit().bytes, 3 * kMiB);
  in_cgroup("4:cpu,cpuacct:/docker/a\n");
  EXPECT_EQ(limit().bytes, 8 * kMiB);
}

// A container sees its own limit at the top, and the host's path in /proc/self/cgroup.
TEST_F(MemoryLimitTest, OfAPathThatIsNotThere) {
  put("/sys/fs/cgroup/memory.max", "1048576\n");
  for (const char* path : {"0::/kubepods/pod1/worker", "0::/../../other\n", "0::nonsense\n"}) {
    in_cgroup(path);
    EXPECT_EQ(limit().bytes, kMiB) << path;
  }
}

TEST_F(MemoryLimitTest, WhatIsNoNumberIsNoLimit) {
  in_cgroup("0::/\n");
  for (const char* text : {"", "0\n", "-1\n", "12 cats\n", "99999999999999999999999\n", "1e3\n"}) {
    put("/sys/fs/cgroup/memory.max", text);
    EXPECT_EQ(limit().bytes, 8 * kMiB) << text;
  }
  in_cgroup("no colons at all\n:\n4:memory\n");
  EXPECT_EQ(limit().bytes, 8 * kMiB);
  put("/proc/meminfo", "MemTotal: many kB\nMemTotal: 12\n");
  EXPECT_EQ(limit().bytes, MemoryLimit::kNone);
}

TEST_F(MemoryLimitTest, WithoutFilesThereIsNone) {
  std::filesystem::remove_all(root_ + "/proc");
  EXPECT_EQ(limit().bytes, MemoryLimit::kNone);
}

TEST(MemoryOfTheCpu, IsThatOfThisMachine) {
  const MemoryLimit limit = open_device({})->get()->memory().value();
  EXPECT_GT(limit.bytes, 64 * kMiB);
  EXPECT_LT(limit.bytes, std::uint64_t{1} << 50);
  EXPECT_FALSE(limit.source.empty());
}

}  // namespace
}  // namespace rubato::worker::cpu
