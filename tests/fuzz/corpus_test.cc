// Each input of tests/fuzz/corpus through its target once: what was found stays mended, and a
// target that no longer compiles is seen where all is built, not first by `make fuzz`.
#include "tests/fuzz/fuzz.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

namespace rubato::fuzz {
namespace {

const std::filesystem::path kCorpus = "tests/fuzz/corpus";

TEST(FuzzCorpusTest, EachTargetTakesItsCorpus) {
  for (const auto& [name, target] : targets()) {
    ASSERT_TRUE(std::filesystem::is_directory(kCorpus / name))
        << "a target without a seed: " << name;
    for (const auto& file : std::filesystem::directory_iterator(kCorpus / name)) {
      SCOPED_TRACE(file.path());
      std::ifstream stream(file.path(), std::ios::binary);
      target(std::string(std::istreambuf_iterator<char>(stream), {}));
    }
  }
}

TEST(FuzzCorpusTest, EachFolderHasATarget) {
  for (const auto& folder : std::filesystem::directory_iterator(kCorpus)) {
    EXPECT_TRUE(targets().contains(folder.path().filename())) << folder.path();
  }
}

}  // namespace
}  // namespace rubato::fuzz
