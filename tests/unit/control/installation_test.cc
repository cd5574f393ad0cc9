#include "operator/control/installation.h"

#include <gtest/gtest.h>

namespace rubato::control {
namespace {

kube::Meta labelled(const std::string& whose) {
  kube::Meta meta;
  if (!whose.empty()) meta.labels = {{"rubato.dev/installation", whose}};
  return meta;
}

TEST(Installation, SeesItsOwnAndWhatIsNobodysYet) {
  const Installation ours{"team-a", {}};
  EXPECT_TRUE(ours.may_see(labelled("team-a")));
  EXPECT_TRUE(ours.may_see(labelled("")));
  EXPECT_FALSE(ours.may_see(labelled("team-b")));
  EXPECT_TRUE(ours.owns(labelled("team-a")));
  EXPECT_FALSE(ours.owns(labelled("")));
  EXPECT_FALSE(ours.owns(labelled("team-b")));
  // What its status says counts, whatever has become of the label.
  EXPECT_TRUE(ours.may_see(labelled("team-b"), "team-a"));
  EXPECT_FALSE(ours.may_see(labelled(""), "team-b"));
  EXPECT_FALSE(ours.may_see(labelled("team-a"), "team-b"));
}

TEST(Installation, NamesAreChecked) {
  EXPECT_TRUE((Installation{"a", {"default", "team-1"}}.check().ok()));
  for (const char* bad : {"", "Team", "-a", "a-", "a.b", "a b"}) {
    EXPECT_FALSE((Installation{bad, {}}.check().ok())) << bad;
    EXPECT_FALSE((Installation{"a", {bad}}.check().ok())) << bad;
  }
  EXPECT_FALSE((Installation{std::string(64, 'a'), {}}.check().ok()));
  const std::vector<std::string> many(kNamespacesMost + 1, "ns");
  const Status too_many = Installation{"a", many}.check();
  ASSERT_FALSE(too_many.ok());
  EXPECT_NE(too_many.error().what().find("at most 64"), std::string::npos);
}

}  // namespace
}  // namespace rubato::control
