// Real namespaces, where this machine lets us make them.
#include "tools/localnode/sandbox.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato::localnode {
namespace {

namespace fs = std::filesystem;

class SandboxTest : public ::testing::Test {
 protected:
  SandboxTest() {
    char path[] = "/tmp/rubato-sandbox-XXXXXX";
    folder_ = mkdtemp(path);
    for (const char* name : {"root", "volume", "outside"})
      fs::create_directories(folder_ + "/" + name);
    spec_.path = "/usr/local/bin:/usr/bin:/bin";
    spec_.new_root = folder_ + "/root";
  }
  ~SandboxTest() override { fs::remove_all(folder_); }
  void SetUp() override {
    if (const Status able = probe_namespaces(); !able.ok()) GTEST_SKIP() << able.error().what();
  }

  // The exit status of a shell in it; what it said is in output().
  int run(const std::string& script) {
    spec_.command = {"/bin/sh", "-c", script};
    const pid_t child = ::fork();
    if (child == 0) {
      const int out = ::open((folder_ + "/output").c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
      ::dup2(out, 1);
      ::dup2(out, 2);
      ::_exit(run_sandbox(spec_));
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string output() const {
    std::ostringstream text;
    text << std::ifstream(folder_ + "/output").rdbuf();
    return text.str();
  }
  std::string volume() const { return folder_ + "/volume"; }
  std::string outside() const { return folder_ + "/outside"; }

  std::string folder_;
  SandboxSpec spec_;
};

TEST_F(SandboxTest, DevicesAreItsOwn) {
  const std::string probe = "/dev/" + fs::path(folder_).filename().string();
  const int status = run(
      "set -e; for name in null zero full random urandom; do test -c /dev/$name; done\n"
      "echo lost >/dev/null; test \"$(head -c 2 /dev/zero | wc -c)\" = 2\n"
      "test -e /dev/fd/1; echo said >/dev/stdout; echo shared >/dev/shm/file; ! test -e /dev/kmsg\n"
      "touch " +
      probe);
  EXPECT_EQ(status, 0) << output();
  EXPECT_EQ(output(), "said\n");
  EXPECT_FALSE(fs::exists(probe));
  EXPECT_FALSE(fs::exists("/dev/shm/file"));
  fs::remove(probe);
}

TEST_F(SandboxTest, DevicesThatComeAsMountsAreThere) {
  std::ofstream(volume() + "/nvidia0") << "gpu";
  spec_.mounts = {{volume() + "/nvidia0", "/dev/nvidia0", false}};
  EXPECT_EQ(run("cat /dev/nvidia0 && test -c /dev/null"), 0) << output();
  EXPECT_EQ(output(), "gpu");
}

TEST_F(SandboxTest, AVolumeOnADeviceIsSeenInsideAlone) {
  struct stat before{};
  struct stat after{};
  ASSERT_EQ(::lstat("/dev/zero", &before), 0);
  std::ofstream(volume() + "/file") << "mine";
  spec_.mounts = {{volume(), "/dev/zero", false}, {volume(), "/dev/shm", false}};
  EXPECT_EQ(run("cat /dev/zero/file && echo x >/dev/shm/made"), 0) << output();
  EXPECT_EQ(output(), "mine");
  EXPECT_TRUE(fs::exists(volume() + "/made"));
  ASSERT_EQ(::lstat("/dev/zero", &after), 0);
  EXPECT_EQ(before.st_mode, after.st_mode);
  EXPECT_EQ(before.st_ino, after.st_ino);
}

// A volume keeps what a pod of before put there. A mount path that goes through it is followed in
// the pod's view, where the folder outside is not.
TEST_F(SandboxTest, ALinkInAVolumeLeadsToNothingOfTheMachine) {
  fs::create_symlink(outside(), volume() + "/link");
  fs::create_directories(folder_ + "/inner");
  spec_.mounts = {{folder_ + "/inner", "/data/link/made", false}, {volume(), "/data", false}};
  EXPECT_EQ(run("true"), 127);
  EXPECT_NE(output().find("making room for the volume at /data/link/made"), std::string::npos)
      << output();
  EXPECT_TRUE(fs::is_empty(outside()));
  // One that leads to a folder of the machine that the view has: read-only, and below it no room.
  fs::remove(volume() + "/link");
  fs::create_symlink("/etc", volume() + "/link");
  EXPECT_EQ(run("true"), 127);
  EXPECT_FALSE(fs::exists("/etc/made"));
}

// A pod's sidecar puts a link in the place of the folder that a mount of the next container names.
TEST_F(SandboxTest, ASubPathThatIsReplacedMeanwhileLeadsToNothingOfTheMachine) {
  std::ofstream(outside() + "/secret") << "machine's";
  fs::create_directories(volume() + "/part/inner");
  std::ofstream(volume() + "/part/inner/file") << "mine";
  spec_.mounts = {{volume(), "/data", false, "part/inner"}, {volume(), "/new", false, "made/here"}};
  EXPECT_EQ(run("cat /data/file; touch /new/file"), 0) << output();
  EXPECT_EQ(output(), "mine");
  EXPECT_TRUE(fs::exists(volume() + "/made/here/file"));
  fs::remove_all(volume() + "/part/inner");
  fs::create_symlink(outside(), volume() + "/part/inner");
  EXPECT_EQ(run("cat /data/secret"), 127);
  EXPECT_EQ(output().find("machine's"), std::string::npos) << output();
  EXPECT_NE(output().find("part/inner"), std::string::npos) << output();
}

TEST_F(SandboxTest, TheMachinesFilesAreReadOnlyAndVolumesAreNot) {
  std::ofstream(outside() + "/file") << "old";
  spec_.mounts = {{outside(), "/opt/none/kept", true}, {volume(), "/opt/none/mine", false}};
  EXPECT_EQ(run("cat /opt/none/kept/file; echo new >/opt/none/mine/file\n"
                "echo new >/opt/none/kept/file; touch /usr/rubato-probe; touch /sys/rubato-probe"),
            1);
  EXPECT_TRUE(fs::exists(volume() + "/file"));
  EXPECT_FALSE(fs::exists("/usr/rubato-probe"));
  std::string text;
  std::ifstream(outside() + "/file") >> text;
  EXPECT_EQ(text, "old");
}

TEST(MountTarget, IsAPlaceThatIsNotTheContainersOwn) {
  EXPECT_EQ(mount_target("/data").value(), "/data");
  EXPECT_EQ(mount_target("/data/../opt//x/").value(), "/opt/x");
  EXPECT_EQ(mount_target("/dev/shm").value(), "/dev/shm");
  EXPECT_EQ(mount_target("/sys").value(), "/sys");
  for (const char* wrong :
       {"", "data", "/", "/..", "/dev", "/dev/", "/proc", "/proc/self/fd", "/data/../proc"})
    EXPECT_EQ(mount_target(wrong).error().code(), Code::kInvalid) << wrong;
}

TEST(MountTarget, ALinkOfTheMachineIsSeenThrough) {
  char path[] = "/tmp/rubato-target-XXXXXX";
  const std::string folder = mkdtemp(path);
  fs::create_symlink("/proc", folder + "/link");
  fs::create_symlink(folder, folder + "/self");
  EXPECT_EQ(mount_target(folder + "/link").error().code(), Code::kInvalid);
  EXPECT_EQ(mount_target(folder + "/self/a").value(), folder + "/a");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace rubato::localnode
