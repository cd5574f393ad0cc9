#include "tools/rubatoctl/session.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

namespace fs = std::filesystem;

struct KubeconfigFor : ::testing::Test {
  KubeconfigFor() {
    EXPECT_NE(::mkdtemp(home.data()), nullptr);
    for (const char* name : {"HOME", "XDG_STATE_HOME", "KUBECONFIG"}) {
      const char* value = std::getenv(name);
      if (value != nullptr) before[name] = value;
      ::unsetenv(name);
    }
    ::setenv("HOME", home.c_str(), 1);
  }
  ~KubeconfigFor() override {
    ::unsetenv("HOME");
    ::unsetenv("KUBECONFIG");
    for (const auto& [name, value] : before) ::setenv(name.c_str(), value.c_str(), 1);
    fs::remove_all(home);
  }
  static void make(const std::string& path) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << "kind: Config\n";
  }
  std::string home = ::testing::TempDir() + "/home-XXXXXX";
  std::map<std::string, std::string> before;
};

// By its path, so that a pod's own cluster does not come before it.
TEST_F(KubeconfigFor, IsWhatIsNamedThenTheFileAtHomeThenTheLocalOne) {
  EXPECT_EQ(kubeconfig_for({}), "");
  const std::string local = local_kubeconfig(default_local_state());
  make(local);
  EXPECT_EQ(kubeconfig_for({}), local);
  make(home + "/.kube/config");
  EXPECT_EQ(kubeconfig_for({}), home + "/.kube/config");
  ::setenv("KUBECONFIG", "a:b", 1);
  EXPECT_EQ(kubeconfig_for({}), "");
  EXPECT_EQ(kubeconfig_for({.kubeconfig = "c"}), "c");
}

}  // namespace
}  // namespace rubato::ctl
