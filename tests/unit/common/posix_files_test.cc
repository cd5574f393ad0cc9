#include "common/files.h"

#include <filesystem>
#include <fstream>
#include <vector>

#include <gtest/gtest.h>

namespace rubato {
namespace {

TEST(CheckWritten, SparesWhatIsReadAndWhatIsNoFile) {
  std::string folder = testing::TempDir() + "/written-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string text = folder + "/text";
  std::ofstream(text) << "words";
  std::ofstream(folder + "/new.tmp") << "words";
  std::filesystem::create_hard_link(text, folder + "/same");
  std::filesystem::create_symlink(text, folder + "/link");
  const auto check = [&](const std::string& path, std::vector<std::string> read) {
    return check_written(path, read).ok();
  };
  EXPECT_TRUE(check(folder + "/other", {text, folder + "/missing"}));
  EXPECT_TRUE(check(folder + "/same", {folder + "/missing"}));
  for (const char* name : {"/text", "/same", "/link"})
    EXPECT_FALSE(check(folder + name, {text})) << name;
  EXPECT_FALSE(check(folder + "/new", {folder + "/new.tmp"}));
  EXPECT_FALSE(check("/dev/null", {}));
  EXPECT_FALSE(check(folder, {}));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace rubato
