#include "tools/rubatoctl/completion.h"

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

TEST(Completion, CarriesEveryCommand) {
  const std::string script =
      bash_completion({{"", {"local", "--kubeconfig"}}, {"local up", {"--nodes", "--slots"}}});
  EXPECT_NE(script.find("[\"_\"]=\"local --kubeconfig\""), std::string::npos);
  EXPECT_NE(script.find("[\"_local up\"]=\"--nodes --slots\""), std::string::npos);
  EXPECT_NE(script.find("complete -F _rubatoctl rubatoctl"), std::string::npos);
}

TEST(NearestWord, IsOneWithAFewOtherLetters) {
  const std::vector<std::string> words = {"get", "generate", "logs", "loss", "local"};
  EXPECT_EQ(nearest_word("gett", words), "get");
  EXPECT_EQ(nearest_word("genrate", words), "generate");
  EXPECT_EQ(nearest_word("lgos", words), "logs");
  EXPECT_EQ(nearest_word("frob", words), "");
  EXPECT_EQ(nearest_word("x", words), "");
  EXPECT_EQ(nearest_word("", words), "");
}

}  // namespace
}  // namespace rubato::ctl
