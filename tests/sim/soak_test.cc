// The record of a soak: what is told is not told again, whatever ended the soak before.
#include "tests/sim/soak.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

namespace rubato::sim {
namespace {

Totals range_of(std::uint64_t stories) {
  Totals totals;
  totals.stories = stories;
  totals.virtual_seconds = 1.5;
  totals.large = 2;
  totals.coverage.reached[3] = 7;
  totals.coverage.met[2][5] = 9;
  return totals;
}

class Soak : public ::testing::Test {
 protected:
  Soak() { std::filesystem::remove_all(folder_); }
  ~Soak() override { std::filesystem::remove_all(folder_); }
  SoakRecord open(const std::string& name = "a") { return SoakRecord::open(folder_, name).value(); }

  const std::string folder_ =
      (std::filesystem::temp_directory_path() / ("soak_test." + std::to_string(::getpid())))
          .string();
};

TEST_F(Soak, RangesKeepToAGrid) {
  const SoakRecord record = open();
  EXPECT_EQ(record.missing(1, 250),
            (std::vector<SeedRange>{{1, kRangeStories - 1}, {100, kRangeStories}, {200, 51}}));
}

TEST_F(Soak, GoesOnWhereItWas) {
  {
    SoakRecord record = open();
    Totals partial = range_of(30);
    partial.failed = {{105, "at 3.0 s: \"quoted\""}};
    ASSERT_TRUE(record.add(1, range_of(99)).ok());
    ASSERT_TRUE(record.add(100, partial).ok());
  }
  const SoakRecord record = open();
  EXPECT_EQ(record.missing(1, 250), (std::vector<SeedRange>{{130, 70}, {200, 51}}));
  EXPECT_EQ(record.missing(50, 60), (std::vector<SeedRange>{}));
  const Totals& totals = record.totals();
  EXPECT_EQ(totals.stories, 129u);
  EXPECT_EQ(totals.virtual_seconds, 3.0);
  EXPECT_EQ(totals.large, 4u);
  EXPECT_EQ(totals.coverage.reached[3], 14u);
  EXPECT_EQ(totals.coverage.met[2][5], 18u);
  ASSERT_EQ(totals.failed.size(), 1u);
  EXPECT_EQ(totals.failed[0].seed, 105u);
  EXPECT_EQ(totals.failed[0].what, "at 3.0 s: \"quoted\"");
}

TEST_F(Soak, ALineCutShortIsToldAgain) {
  std::string path;
  {
    SoakRecord record = open();
    ASSERT_TRUE(record.add(100, range_of(100)).ok());
    path = record.path();
  }
  std::ofstream(path, std::ios::app) << R"({"stories":100,"vir)";
  {
    SoakRecord record = open();
    EXPECT_EQ(record.missing(100, 200), (std::vector<SeedRange>{{200, 100}}));
    ASSERT_TRUE(record.add(200, range_of(100)).ok());
  }
  EXPECT_EQ(open().totals().stories, 200u);
}

TEST_F(Soak, AnotherProgramHasAnotherRecord) {
  SoakRecord record = open("a");
  ASSERT_TRUE(record.add(100, range_of(100)).ok());
  EXPECT_EQ(open("b").totals().stories, 0u);
}

TEST_F(Soak, OneAtATimeWorksOnARecord) {
  const SoakRecord record = open();
  const auto second = SoakRecord::open(folder_, "a");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), Code::kConflict);
}

TEST(Totals, SayWhetherEnoughStoriesWereLarge) {
  Totals totals = range_of(kLargeCounted);
  totals.large = 9;
  EXPECT_EQ(shortage_of(totals), "9 of 500 stories had 32 members, and 2 % are to have");
  EXPECT_NE(to_string(totals).find("9 stories with 32 members (1.8 %)"), std::string::npos);
  totals.stories -= 1;
  EXPECT_EQ(shortage_of(totals), "") << "too few to say";
  totals = range_of(kLargeCounted);
  totals.large = 10;
  EXPECT_EQ(shortage_of(totals), "");
}

TEST(Phases, HaveNames) {
  for (std::size_t p = 0; p < kPhases; ++p)
    EXPECT_EQ(phase_named(name_of(static_cast<Phase>(p))), static_cast<Phase>(p));
  EXPECT_EQ(phase_named("else"), std::nullopt);
}

}  // namespace
}  // namespace rubato::sim
