#include "tools/localnode/sub_path.h"

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato::localnode {
namespace {

namespace fs = std::filesystem;

class SubPathTest : public ::testing::Test {
 protected:
  SubPathTest() {
    char path[] = "/tmp/rubato-volume-XXXXXX";
    folder_ = mkdtemp(path);
    volume_ = folder_ + "/volume";
    fs::create_directories(volume_ + "/inside");
    fs::create_directories(folder_ + "/volumes");
    std::ofstream(volume_ + "/file") << "x";
    fs::create_symlink(folder_, volume_ + "/out");
    fs::create_symlink("..", volume_ + "/up");
    fs::create_symlink("inside", volume_ + "/in");
    fs::create_symlink(folder_ + "/nothing", volume_ + "/broken");
  }
  ~SubPathTest() override { fs::remove_all(folder_); }

  bool leads_to(const std::string& sub_path, const std::string& path) const {
    const auto opened = open_sub_path(volume_, sub_path);
    return opened.ok() && fs::equivalent(opened->path(), volume_ + "/" + path);
  }
  bool is_refused(const std::string& sub_path) const {
    const auto opened = open_sub_path(volume_, sub_path);
    return !opened.ok() && opened.error().code() == Code::kInvalid;
  }

  std::string folder_;
  std::string volume_;
};

TEST_F(SubPathTest, IsMadeWhenItIsMissing) {
  EXPECT_TRUE(leads_to("a/b", "a/b"));
  EXPECT_TRUE(fs::is_directory(volume_ + "/a/b"));
  EXPECT_TRUE(leads_to("a..b/", "a..b"));
  EXPECT_TRUE(leads_to("file", "file"));
  EXPECT_TRUE(fs::is_regular_file(volume_ + "/file"));
  EXPECT_FALSE(open_sub_path(volume_, "file/x").ok());
  for (const char* wrong : {"../x", "a/../../x", "/etc", ""})
    EXPECT_TRUE(is_refused(wrong)) << wrong;
}

TEST_F(SubPathTest, ALinkLeadsNowhereOutside) {
  EXPECT_TRUE(leads_to("in", "inside"));
  EXPECT_TRUE(leads_to("in/made", "inside/made"));
  for (const char* wrong : {"out", "out/made", "out/volumes", "up", "up/made", "broken/made"})
    EXPECT_TRUE(is_refused(wrong)) << wrong;
  EXPECT_FALSE(fs::exists(folder_ + "/made") || fs::exists(folder_ + "/nothing"));
}

// From here on this process has no openat2: ENOSYS of a kernel before Linux 5.6, EPERM of a sandbox
// that does not know it.
bool forget_openat2(int error) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = std::size(code), .filter = code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_F(SubPathTest, WithoutOpenat2NoLinkIsFollowed) {
  constexpr int kUnable = 100;
  for (const int error : {ENOSYS, EPERM}) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (!forget_openat2(error)) ::_exit(kUnable);
      const bool opens = leads_to("a/b", "a/b") && leads_to("inside", "inside");
      const bool refuses = is_refused("in") && is_refused("out") && is_refused("up");
      const bool is_closed = !open_sub_path(volume_, "out/made").ok();
      ::_exit(opens && refuses && is_closed && !fs::exists(folder_ + "/made") ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == kUnable) GTEST_SKIP() << "no seccomp here";
    EXPECT_EQ(WEXITSTATUS(status), 0) << error;
  }
}

}  // namespace
}  // namespace rubato::localnode
