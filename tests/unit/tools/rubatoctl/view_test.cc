#include "tools/rubatoctl/demo/terminal.h"
#include "tools/rubatoctl/local/commands.h"
#include "tools/rubatoctl/training.h"
#include "tools/rubatoctl/view/plot.h"
#include "tools/rubatoctl/view/text_table.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

json::Value object_from(const char* text) {
  auto value = json::parse(text);
  EXPECT_TRUE(value.ok());
  return value.value_or(json::Value());
}

constexpr const char* kTable = R"({"kind":"Table","columnDefinitions":[
  {"name":"Name","type":"string","priority":0},{"name":"GPUs","type":"string","priority":0},
  {"name":"Queue","type":"string","priority":1}],
  "rows":[{"cells":["a","2/2-4","default"],"object":{"metadata":{"namespace":"x"}}},
          {"cells":["longer",null,7],"object":{"metadata":{"namespace":"y"}}}]})";

TEST(TextTable, LooksLikeKubectl) {
  EXPECT_EQ(render(from_server(object_from(kTable), false)),
            "NAME     GPUS\n"
            "a        2/2-4\n"
            "longer\n");
}

TEST(TextTable, WideAndNamespaces) {
  EXPECT_EQ(render(from_server(object_from(kTable), true, true)),
            "NAMESPACE   NAME     GPUS    QUEUE\n"
            "x           a        2/2-4   default\n"
            "y           longer           7\n");
}

TEST(TextTable, CountsCharactersNotBytes) {
  EXPECT_EQ(render({{"A", "B"}, {{"\xC3\xA9\xC3\xA9", "x"}, {"ab", "y"}}}),
            "A    B\n\xC3\xA9\xC3\xA9   x\nab   y\n");
}

TEST(TextTable, ARowIsOneLineOfTextWhateverItsCellsAre) {
  EXPECT_EQ(render({{"A", "B"}, {{"x\n\x1b[1m", "b"}, {"\xff\x80", "c"}}}),
            "A        B\n"
            "x  [1m   b\n"
            "??       c\n");
}

TEST(Plot, DrawsFromTheTopLeftToTheBottomRight) {
  const std::string text =
      plot({{0, 4}, {1, 3}, {2, 2}, {3, 1}}, {{3, 'x'}}, {.width = 4, .height = 4});
  EXPECT_EQ(text,
            "   4.000 |*\n"
            "         | *\n"
            "         |  *\n"
            "   1.000 |   *\n"
            "         +----\n"
            "             x\n"
            "          0  3\n");
}

TEST(Plot, OnePointAndNone) {
  EXPECT_EQ(plot({}), "");
  EXPECT_NE(plot({{1, 2}}).find('*'), std::string::npos);
}

TEST(Plot, LeavesOutWhatIsNotFinite) {
  const double nan = std::nan("");
  const double inf = std::numeric_limits<double>::infinity();
  const std::string remark = "2 of 4 points are not finite, and left out\n";
  EXPECT_EQ(plot({{1, 2}, {2, nan}, {3, 1}, {4, inf}}), plot({{1, 2}, {3, 1}}) + remark);
  EXPECT_EQ(plot({{1, -inf}}), "1 of 1 point is not finite, and left out\n");
  // Their range and their sum are no doubles.
  EXPECT_NE(plot({{1, 1e308}, {2, -1e308}, {2, -1e308}}).find('*'), std::string::npos);
}

TEST(Plot, MarksOfOneColumnStandSideBySide) {
  const std::string text = plot({{0, 1}, {9, 0}}, {{2, 'a'}, {2, 'b'}}, {.width = 10, .height = 2});
  EXPECT_NE(text.find("            ab\n"), std::string::npos) << text;
}

TEST(Bar, IsBounded) {
  EXPECT_EQ(bar(-1, 4), "[----]");
  EXPECT_EQ(bar(0.5, 4), "[##--]");
  EXPECT_EQ(bar(7, 4), "[####]");
  EXPECT_EQ(bar(std::nan(""), 4), "[----]");
}

TEST(Numbers, AreShort) {
  EXPECT_EQ(short_number(812), "812");
  EXPECT_EQ(short_number(5120), "5.1k");
  EXPECT_EQ(short_number(1.2e6), "1.2M");
  EXPECT_EQ(short_time(42), "42s");
  EXPECT_EQ(short_time(312), "5m12s");
  EXPECT_EQ(short_time(3720), "1h02m");
  EXPECT_EQ(short_time(-1), "-");
  EXPECT_EQ(short_time(std::numeric_limits<double>::infinity()), "-");
}

TEST(Logs, SayWhatAJobWithoutPodsWaitsFor) {
  const auto waits = [](const std::string& status) {
    return waits_for_pods(json::parse(R"({"status":)" + status + "}").value_or(json::Value()));
  };
  EXPECT_EQ(waits(R"({"state":"Queued","reason":"QueueLimit","conditions":[)"
                  R"({"type":"Running","status":"False","message":"holds no GPUs"},)"
                  R"({"type":"Queued","status":"True","message":"team-a is at its limit"}]})"),
            "job is Queued (QueueLimit): team-a is at its limit; waiting for its pods");
  EXPECT_EQ(waits("{}"), "no operator has looked at the job yet; waiting for its pods");
  EXPECT_EQ(waits(R"({"state":"Running","reason":"Training"})"), "");
}

TEST(Top, ShowsWhatIsKnown) {
  const WallTime now = parse_rfc3339("2026-11-21T08:01:00Z").value();
  const auto job = object_from(R"({"metadata":{"name":"gpt","namespace":"a"},"status":{
    "state":"Running","display":{"gpus":"3/2-4","tokensPerSecond":"5.2k"},
    "progress":{"step":150,"steps":600,"loss":2.5,"estimatedRemainingSeconds":75},
    "rescales":{"count":1,"last":{"from":4,"to":3,"stallSeconds":0.25,
                "time":"2026-11-21T08:00:00Z"}}}})");
  EXPECT_EQ(
      top_text({job}, now, false),
      "NAME   STATE     GPUS    PROGRESS                      LOSS     TOKENS/S   ETA     LAST "
      "RESCALE\n"
      "gpt    Running   3/2-4   [#####---------------]  25%   2.5000   5.2k       1m15s   4 to "
      "3, 0.25s, 60s ago\n");
  EXPECT_EQ(top_text({}, now, false), "No training jobs.\n");
}

TEST(Top, IsDrawnInTheRowsThatThereAre) {
  const std::string begin = "\x1b[?7l\x1b[H";
  const std::string end = "\x1b[J\x1b[?7h";
  EXPECT_EQ(drawn("a\nb\n", 24), begin + "a\x1b[K\nb\x1b[K\n" + end);
  EXPECT_EQ(drawn("a\nb\nc\n", 3), begin + "a\x1b[K\nb\x1b[K\n" + end)
      << "the cursor in the last row";
}

// Of 80 columns the demo's takes more.
TEST(Progress, IsCutWhereTheTerminalEnds) {
  EXPECT_EQ(drawn_over("[  1.0s] 1/600"), "\r\x1b[K\x1b[?7l[  1.0s] 1/600\x1b[?7h");
}

TEST(Nodes, AreListedWithTheirLeases) {
  const WallTime now = parse_rfc3339("2026-11-21T08:01:00Z").value();
  const auto node = [](const std::string& name) {
    return object_from(
        (R"({"metadata":{"name":")" + name +
         R"(","creationTimestamp":"2026-11-21T07:59:00Z"},"status":{)"
         R"("conditions":[{"type":"Ready","status":"True"}],"allocatable":{"nvidia.com/gpu":"4"}}})")
            .c_str());
  };
  const auto lease = object_from(
      R"({"metadata":{"name":"n1"},"spec":{"renewTime":"2026-11-21T08:00:50.000000Z"}})");
  const auto pod = object_from(R"({"spec":{"nodeName":"n2"}})");
  EXPECT_EQ(nodes_text({node("n1"), node("n2")}, {lease}, {pod, pod}, now),
            "NAME   STATUS   HEARTBEAT   TYPE   GPUS   PODS   AGE\n"
            "n1     Ready    10s ago     -      4      0      2m\n"
            "n2     Ready    -           -      4      2      2m\n");
}

}  // namespace
}  // namespace rubato::ctl
