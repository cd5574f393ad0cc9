#include "worker/protocol/members.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::wire {
namespace {

Members members(const std::vector<int>& numbers) {
  Members all;
  for (const int number : numbers) {
    Member& member = *all.Add();
    member.mutable_id()->set_pod_uid("uid-" + std::to_string(number));
    member.mutable_id()->set_incarnation(1);
    member.mutable_address()->set_host("10.0.0." + std::to_string(number));
    member.mutable_address()->set_port(4431);
  }
  return all;
}

Form form(const std::vector<int>& numbers) {
  Form form;
  form.set_generation(8);
  *form.mutable_members() = members(numbers);
  for (std::size_t i = 0; i < numbers.size(); ++i) form.add_shares();
  return form;
}

// What the change keeps, as text, and how many it names.
std::string told(const std::vector<int>& numbers) {
  Form change = form(numbers);
  if (!name_change(change, 7, members({0, 1, 2, 3, 4}))) return "all";
  std::string text;
  for (const Range& range : change.kept())
    text += std::to_string(range.begin()) + "-" + std::to_string(range.end()) + " ";
  Form again = change;
  EXPECT_TRUE(name_all(again, 7, members({0, 1, 2, 3, 4})));
  Form meant = form(numbers);
  meant.clear_shares();
  EXPECT_EQ(again.SerializeAsString(), meant.SerializeAsString());
  return text + "+" + std::to_string(change.members_size());
}

TEST(WireMembers, AChangeKeepsWhatItCanFromTheFront) {
  EXPECT_EQ(told({0, 1, 2, 3, 4}), "0-5 +0");
  EXPECT_EQ(told({0, 1, 3, 4}), "0-2 3-5 +0");
  EXPECT_EQ(told({1, 2, 3}), "1-4 +0");
  EXPECT_EQ(told({0, 1, 2, 3, 4, 5, 6}), "0-5 +2");
  EXPECT_EQ(told({0, 2, 9, 3}), "0-1 2-3 +2");
  EXPECT_EQ(told({3, 1, 2}), "3-4 +2");
  EXPECT_EQ(told({9, 0, 1}), "all");
}

// A new process of the same worker is another member.
TEST(WireMembers, AnotherIncarnationIsNamed) {
  Form change = form({0, 1, 2});
  change.mutable_members(1)->mutable_id()->set_incarnation(2);
  ASSERT_TRUE(name_change(change, 7, members({0, 1, 2})));
  ASSERT_EQ(change.members_size(), 2);
  EXPECT_EQ(change.members(0).id().incarnation(), 2u);
}

TEST(WireMembers, WhatIsKnownNeedNoAddresses) {
  Members known = members({0, 1, 2});
  for (Member& member : known) member.clear_address();
  Form change = form({0, 2});
  ASSERT_TRUE(name_change(change, 7, known));
  EXPECT_TRUE(name_all(change, 7, members({0, 1, 2})));
}

TEST(WireMembers, AChangeOfWhatIsNotKnownIsRefusedAndStays) {
  Form change = form({0, 1, 3});
  ASSERT_TRUE(name_change(change, 7, members({0, 1, 2, 3})));
  const std::string before = change.SerializeAsString();
  EXPECT_FALSE(name_all(change, 6, members({0, 1, 2, 3})));
  EXPECT_FALSE(name_all(change, 0, members({0, 1, 2, 3})));
  EXPECT_FALSE(name_all(change, 7, members({0, 1, 2, 4})));  // another member
  EXPECT_FALSE(name_all(change, 7, members({0, 1, 2})));     // too few
  EXPECT_FALSE(name_all(change, 7, {}));
  Members moved = members({0, 1, 2, 3});
  moved[3].mutable_address()->set_port(1);
  EXPECT_FALSE(name_all(change, 7, moved));
  EXPECT_EQ(change.SerializeAsString(), before);
  EXPECT_TRUE(name_all(change, 7, members({0, 1, 2, 3})));
}

TEST(WireMembers, RangesThatDoNotFitAreRefused) {
  const std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> wrong{
      {{1, 1}}, {{2, 1}}, {{0, 4}}, {{0, 2}, {1, 3}}, {{1, 2}, {0, 1}}, {{0, 0xffffffff}}};
  for (const auto& ranges : wrong) {
    Form change;
    change.set_members_of(7);
    for (const auto& [begin, end] : ranges) {
      Range& range = *change.add_kept();
      range.set_begin(begin);
      range.set_end(end);
    }
    EXPECT_FALSE(name_all(change, 7, members({0, 1, 2})));
  }
}

}  // namespace
}  // namespace rubato::wire
