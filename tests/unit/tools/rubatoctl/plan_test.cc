#include "tools/rubatoctl/plan.h"

#include "common/json.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rubato::ctl {
namespace {

// One node of two GPUs; a wants one or two of them, b eight.
const std::string kSnapshot =
    R"({"version":1,"policy":{"name":"fifo"},)"
    R"("nodes":[{"id":"n1","gpuType":"A","gpus":2,"free":{"gpus":2}}],)"
    R"("queues":[{"name":"q"}],"jobs":[)"
    R"({"id":"1","name":"team/a","queue":"q","gpus":{"min":1,"max":2},"perPod":{"gpus":1}},)"
    R"({"id":"2","name":"team/b","queue":"q","gpus":{"min":8,"max":8},"perPod":{"gpus":1}}]})";

TEST(RubatoctlPlan, IsJson) {
  const auto text = plan_text(kSnapshot, "json");
  ASSERT_TRUE(text.ok()) << text.error().what();
  ASSERT_TRUE(text->ends_with("\n"));
  EXPECT_EQ(text->find('\n'), text->size() - 1);
  const auto plan = json::parse(*text);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ((*plan)["actions"][0]["kind"].string_or(""), "start");
  EXPECT_EQ((*plan)["actions"][0]["add"].size(), 2u);
  EXPECT_EQ((*plan)["verdicts"][1]["outcome"].string_or(""), "never");
  EXPECT_EQ(json::dump((*plan)["verdicts"][1]["fix"]),
            R"([{"change":"lowerMin","to":2,"message":"lower spec.gpus.min to 2"}])");
  EXPECT_FALSE((*plan)["verdicts"][0].has("fix"));
}

TEST(RubatoctlPlan, IsATableForPeople) {
  EXPECT_EQ(
      *plan_text(kSnapshot, "table"),
      "ACTION   JOB      CHANGE     REASON\n"
      "start    team/a   +2 on n1   there is room for it\n"
      "\n"
      "WAITS    OUTCOME   REASON           EXPECTED   MESSAGE\n"
      "team/b   never     ExceedsCluster              needs 8 GPUs; the nodes it may use have "
      "2 in all: lower spec.gpus.min to 2, or add nodes\n"
      "\n"
      "NEVER    FIX\n"
      "team/b   lower spec.gpus.min to 2\n");
  EXPECT_EQ(*plan_text(R"({"version":1,"policy":{"name":"fifo"},"nodes":[],"jobs":[]})", "table"),
            "Nothing to do.\n\nNobody waits.\n");
}

TEST(RubatoctlPlan, OfThePolicyThatIsAssumedIsCertified) {
  const std::string unsaid = R"({"version":1,"nodes":[],"jobs":[]})";
  EXPECT_EQ(*plan_text(unsaid, "table"),
            "Nothing to do.\n\nNobody waits.\n\n"
            "At most 0.0 % below the best plan if queues shared all: worth 0.00 GPUs of 0.00.\n"
            "Of what is above the minimums of its jobs: at most 0.0 %.\n");
  EXPECT_TRUE(json::parse(*plan_text(unsaid, "json"))->has("certificate"));
}

TEST(RubatoctlPlan, SaysThatAPlanCannotBeDone) {
  sched::Snapshot snapshot = sched::read_snapshot(kSnapshot).value();
  snapshot.policy.policy = "rubato";
  const sched::Plan plan = make_plan(snapshot.state, snapshot.policy);
  const auto good = json::parse(text_of_plan(snapshot, plan, "json")).value();
  EXPECT_TRUE(good.has("certificate"));
  EXPECT_FALSE(good.has("error"));
  ASSERT_FALSE(plan.actions.empty());
  snapshot.state.nodes[0].free.gpus = 0;
  const auto bad = json::parse(text_of_plan(snapshot, plan, "json")).value();
  EXPECT_FALSE(bad.has("certificate"));
  EXPECT_EQ(bad["actions"].size(), plan.actions.size());
  const std::string error = bad["error"].string_or("");
  EXPECT_TRUE(
      error.starts_with("the plan cannot be done, for node \"n1\" has 0 GPUs free, and pods of "))
      << error;
  EXPECT_TRUE(text_of_plan(snapshot, plan, "table").ends_with("\nerror: " + error + "\n"));
}

// A row stays a row, and no name speaks to the terminal.
TEST(RubatoctlPlan, TheTableShowsNamesAsText) {
  std::string text = kSnapshot;
  for (const auto& [name, instead] :
       {std::pair("team/a", R"(a\u001b[31m\nx)"), std::pair("team/b", R"(b\u0085\t)")})
    text.replace(text.find(name), 6, instead);
  const std::string table = *plan_text(text, "table");
  EXPECT_NE(table.find("start    a [31m x   +2 on n1   there is room for it\n"), std::string::npos)
      << table;
  EXPECT_EQ(table.find_first_of("\x1b\t"), std::string::npos) << table;
  EXPECT_NE(table.find("\nb       never "), std::string::npos) << table;
}

TEST(RubatoctlPlan, SaysWhichFieldIsWrong) {
  std::istringstream in(R"({"version":1,"nodes":[{}],"jobs":[]})");
  std::ostringstream out;
  const Status done = plan({}, in, out);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().what(),
            "the input: nodes[0].id: missing, expected a text of 1 to 512 bytes");
  EXPECT_EQ(out.str(), "");
}

TEST(RubatoctlPlan, ReadsAFileOrItsInput) {
  const std::string path = ::testing::TempDir() + "plan_test-" + std::to_string(::getpid());
  std::ofstream(path) << kSnapshot;
  std::istringstream none;
  std::ostringstream from_file, from_input;
  ASSERT_TRUE(plan({.file = path}, none, from_file).ok());
  std::istringstream in(kSnapshot);
  ASSERT_TRUE(plan({}, in, from_input).ok());
  EXPECT_EQ(from_file.str(), from_input.str());
  EXPECT_EQ(from_file.str(), *plan_text(kSnapshot, "json"));
  const Status gone = plan({.file = path + ".gone"}, none, from_file);
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.error().code(), Code::kNotFound);
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::jthread writer([&] { std::ofstream(path) << kSnapshot; });
  std::ostringstream from_pipe;
  ASSERT_TRUE(plan({.file = path}, none, from_pipe).ok());
  EXPECT_EQ(from_pipe.str(), from_input.str());
  std::filesystem::remove(path);
}

TEST(RubatoctlPlan, StreamAnswersEachLineAndGoesOnAfterABadOne) {
  std::istringstream in(kSnapshot + "\n{\"version\":2}\n\n\xff\n" + kSnapshot);  // no last newline
  std::ostringstream out;
  ASSERT_TRUE(plan({.stream = true}, in, out).ok());
  const std::string good = *plan_text(kSnapshot, "json");
  std::vector<std::string> lines;
  std::istringstream said(out.str());
  for (std::string line; std::getline(said, line);) lines.push_back(line + "\n");
  ASSERT_EQ(lines.size(), 5u) << out.str();
  EXPECT_EQ(lines[0], good);
  EXPECT_EQ(lines[1], "{\"error\":\"version: 2, expected a whole number from 1 to 1\"}\n");
  for (const std::size_t bad : {1u, 2u, 3u}) {
    const auto answer = json::parse(lines[bad]);
    ASSERT_TRUE(answer.ok()) << lines[bad];
    EXPECT_TRUE((*answer)["error"].is_string());
  }
  EXPECT_EQ(lines[4], good);
}

std::vector<std::string> errors_of(const std::string& answers) {
  std::vector<std::string> errors;
  std::istringstream said(answers);
  for (std::string line; std::getline(said, line);) {
    const auto answer = json::parse(line);
    EXPECT_TRUE(answer.ok()) << line;
    if (answer.ok()) errors.push_back((*answer)["error"].string_or(""));
  }
  return errors;
}

TEST(RubatoctlPlan, StreamSaysWhichLineIsNotJsonAndHowToGoOn) {
  const std::string expected =
      "; expected a whole snapshot (docs/snapshot.md) as one JSON object without line breaks in "
      "it; go on with the next line, each is answered by itself";
  const std::string begins = R"({"version":1,"nodes":[],"jobs":[{"id":"a)";
  const std::vector<std::string> bad = {"nonsense",
                                        "",
                                        R"({"version":1,)",
                                        std::string(41, '{'),
                                        begins + R"(","id":"b"}]})",
                                        begins + R"(","weight":1e999}]})"};
  std::string lines;
  for (const std::string& line : bad) lines += line + "\n";
  std::istringstream in(lines);
  std::ostringstream out;
  ASSERT_TRUE(plan({.stream = true}, in, out).ok());
  const std::vector<std::string> errors = errors_of(out.str());
  ASSERT_EQ(errors.size(), bad.size()) << out.str();
  const std::vector<std::pair<std::string, std::string>> shown = {
      {"it is nonsense; JSON: ", "(at offset "},
      {"it is empty", ""},
      {R"(it is {"version":1,; JSON, at version: )", "(at offset "},
      {"it begins with " + std::string(40, '{') + " …; JSON", "(at offset "},
      {"it begins with " + begins + R"( …; JSON: jobs[0] has "id" twice; )", "each field once"},
      {"it begins with " + begins + " …; JSON, at jobs[0].weight: ", "(at offset "}};
  for (std::size_t i = 0; i < bad.size(); ++i) {
    const auto& [start, reason] = shown[i];
    const std::string head = "line " + std::to_string(i + 1) + " cannot be read as JSON: " + start;
    EXPECT_TRUE(errors[i].starts_with(head)) << errors[i];
    EXPECT_NE(errors[i].find(reason), std::string::npos) << errors[i];
    EXPECT_TRUE(errors[i].ends_with(expected)) << errors[i];
  }
}

TEST(RubatoctlPlan, StreamPassesOverALineThatIsTooLong) {
  const std::string longest = kSnapshot + std::string(10, ' ');
  std::istringstream in(longest + "\n" + longest + " \n" + longest);
  std::ostringstream out;
  ASSERT_TRUE(plan_stream(in, out, longest.size()).ok());
  EXPECT_EQ(errors_of(out.str()),
            (std::vector<std::string>{"",
                                      "line 2 is longer than a snapshot may be, " +
                                          std::to_string(longest.size()) +
                                          " bytes, and was passed over; go on with the next line",
                                      ""}));
  EXPECT_TRUE(out.str().ends_with(*plan_text(kSnapshot, "json")));
}

TEST(RubatoctlPlan, StreamEndsWhenNobodyReads) {
  std::istringstream in(kSnapshot + "\n" + kSnapshot + "\n");
  std::ostringstream out;
  out.setstate(std::ios::badbit);
  EXPECT_EQ(plan({.stream = true}, in, out).error().code(), Code::kUnavailable);
}

TEST(RubatoctlPlan, StreamTakesNoFileAndNoTable) {
  std::istringstream in;
  std::ostringstream out;
  EXPECT_FALSE(plan({.file = "a", .stream = true}, in, out).ok());
  EXPECT_FALSE(plan({.output = "table", .stream = true}, in, out).ok());
}

}  // namespace
}  // namespace rubato::ctl
