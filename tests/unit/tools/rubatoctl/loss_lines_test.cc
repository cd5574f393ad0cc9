#include "tools/rubatoctl/view/loss_lines.h"

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

constexpr const char* kStep =
    "step=12 loss=3.141593 bits=0x400921fb60000000 lr=1.0000e-03 tokens/s=5120 gpus=2 generation=3";
constexpr const char* kReplay =
    "step=12 loss=3.141593 bits=0x400921fb60000000 lr=1.0000e-03 replay=1";

TEST(LossLine, IsRead) {
  const auto line = parse_loss_line(kStep);
  ASSERT_TRUE(line);
  EXPECT_EQ(line->step, 12);
  EXPECT_DOUBLE_EQ(line->loss, 3.141593);
  EXPECT_EQ(line->bits, "0x400921fb60000000");
  EXPECT_EQ(line->learning_rate, "1.0000e-03");
  EXPECT_DOUBLE_EQ(line->tokens_per_second, 5120);
  EXPECT_EQ(line->gpus, 2);
  EXPECT_EQ(line->generation, 3);
  EXPECT_FALSE(line->replay);
  EXPECT_TRUE(parse_loss_line(kReplay)->replay);
}

TEST(LossLine, OtherLinesAreNone) {
  for (const char* line :
       {"", "step", "step=12", "step=0 loss=1", "validation step=3 loss=2.5 q=0x1",
        "2026-11-21T08:00:00Z INFO step: rank 0", "loss=3 step=2"})
    EXPECT_FALSE(parse_loss_line(line)) << line;
}

TEST(LossStory, EachStepIsToldOnce) {
  LossStory story;
  EXPECT_EQ(story.take("a", kStep), kStep);
  EXPECT_EQ(story.take("b", kStep), std::nullopt);
  EXPECT_EQ(story.take("c", kReplay), std::nullopt);
  EXPECT_EQ(story.steps().size(), 1u);
  EXPECT_EQ(story.conflicts(), 0);
}

TEST(LossStory, ARealLineSaysMoreThanAReplayedOne) {
  LossStory story;
  EXPECT_EQ(story.take("c", kReplay), kReplay);
  EXPECT_EQ(story.take("a", kStep), std::nullopt);
  EXPECT_EQ(story.steps().at(12).gpus, 2);
}

TEST(LossStory, OtherBitsAreTold) {
  LossStory story;
  story.take("a", kStep);
  const auto told = story.take("b", "step=12 loss=3.141593 bits=0x400921fb60000001 lr=1.0000e-03");
  ASSERT_TRUE(told);
  EXPECT_NE(told->find("other loss bits"), std::string::npos);
  EXPECT_EQ(story.conflicts(), 1);
}

TEST(LossStory, OtherLinesCarryTheirPod) {
  LossStory story;
  EXPECT_EQ(story.take("a", "configured"), "[a] configured");
  EXPECT_EQ(story.take("b", "configured"), "[b] configured");
  // All workers say these with the same words.
  EXPECT_EQ(story.take("a", "validation step=100 loss=2.5 q=0x1"),
            "validation step=100 loss=2.5 q=0x1");
  EXPECT_EQ(story.take("b", "validation step=100 loss=2.5 q=0x1"), std::nullopt);
}

TEST(LossCsv, LeavesBlankWhatAReplayDoesNotKnow) {
  LossStory story;
  story.take("a", kStep);
  story.take("a", "step=11 loss=3.5 bits=0x400c000000000000 lr=9.0000e-04 replay=1");
  EXPECT_EQ(to_csv(story.steps()),
            "step,loss,bits,learning_rate,tokens_per_second,gpus,generation\n"
            "11,3.500000,0x400c000000000000,9.0000e-04,,,\n"
            "12,3.141593,0x400921fb60000000,1.0000e-03,5120,2,3\n");
}

}  // namespace
}  // namespace rubato::ctl
