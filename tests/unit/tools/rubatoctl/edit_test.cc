#include "tools/rubatoctl/objects.h"

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

TEST(ConditionNamed, TakesKubectlsSpellings) {
  for (const char* text : {"Complete", "complete", "condition=Complete", "condition=complete",
                           "condition=COMPLETE=true", "Complete=True"})
    EXPECT_EQ(condition_named(text).value_or("none"), "Complete") << text;
  for (const char* text : {"", "Done", "condition=", "condition", "complete=false", "delete"}) {
    const auto named = condition_named(text);
    ASSERT_FALSE(named.ok()) << text;
    EXPECT_NE(named.error().what().find("it has Queued, Allocated, Running"), std::string::npos);
  }
}

}  // namespace
}  // namespace rubato::ctl
