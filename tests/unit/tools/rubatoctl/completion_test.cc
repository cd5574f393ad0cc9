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

}  // namespace
}  // namespace rubato::ctl
