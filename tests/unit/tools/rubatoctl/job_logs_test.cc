#include "tools/rubatoctl/job_logs.h"

#include "tests/unit/tools/rubatoctl/job_world.h"

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

// What is let through of a reading.
std::vector<std::string> read(LogPosition& position, const std::vector<std::string>& lines) {
  position.reopen();
  std::vector<std::string> passed;
  for (const std::string& text : lines) {
    const PodLine line = split_time("p", text);
    if (position.is_new(line.time)) passed.push_back(line.line);
  }
  return passed;
}

using Lines = std::vector<std::string>;

TEST(LogPosition, LinesOfOneTimeComeOnceEach) {
  const std::string time = "2026-11-21T08:00:00.123456Z ";
  LogPosition position;
  EXPECT_EQ(read(position, {time + "a", time + "b"}), (Lines{"a", "b"}));
  EXPECT_EQ(read(position, {time + "a"}), Lines{});  // cut again, before what is new
  EXPECT_EQ(read(position, {time + "a", time + "b", time + "c"}), Lines{"c"});
  EXPECT_EQ(read(position, {time + "a", time + "b", time + "c"}), Lines{});
}

TEST(LogPosition, GoesOnWhereTheStreamWasCut) {
  const std::string early = "2026-11-21T08:00:00.000001Z ";
  const std::string late = "2026-11-21T08:00:00.000002Z ";
  LogPosition position;
  EXPECT_EQ(read(position, {early + "a", late + "b"}), (Lines{"a", "b"}));
  // A clock that was set back, and a line without a time.
  EXPECT_EQ(read(position, {early + "a", late + "b", late + "c", early + "d", "e"}),
            (Lines{"c", "d", "e"}));
}

TEST(LogPosition, AnyTimeZoneWillDo) {
  // The same moment, as nodes write it that are in UTC, in China and in Newfoundland.
  const PodLine utc = split_time("p", "2026-11-21T08:00:00.123456789Z step=1");
  for (const char* text : {"2026-11-21T16:00:00.123456789+08:00 step=1",
                           "2026-11-21T04:30:00.123456789-03:30 step=1"}) {
    const PodLine line = split_time("p", text);
    EXPECT_EQ(line.line, "step=1");
    EXPECT_EQ(line.time, utc.time) << text;
  }
  LogPosition position;
  const std::string first = "2026-11-21T16:00:00.000000001+08:00 ";
  const std::string second = "2026-11-21T16:00:00.000000002+08:00 ";
  EXPECT_EQ(read(position, {first + "a", second + "b"}), (Lines{"a", "b"}));
  EXPECT_EQ(read(position, {first + "a", second + "b", second + "c"}), Lines{"c"});
}

TEST(SplitTime, ALineWithoutATimeStaysWhole) {
  for (const char* text : {"", "step=1", "step=1 loss=2", "2026-11-21T08:00:00Z", " x"}) {
    const PodLine line = split_time("p", text);
    EXPECT_EQ(line.line, text);
    EXPECT_FALSE(line.time) << text;
  }
  EXPECT_EQ(split_time("p", "2026-11-21T08:00:00Z ").line, "");
}

TEST(LogPosition, WithoutTimesEachReadingIsWhole) {
  LogPosition position;
  EXPECT_EQ(read(position, {"a", "b"}), (Lines{"a", "b"}));
  EXPECT_EQ(read(position, {"a", "b"}), (Lines{"a", "b"}));
}

// A log that is there as a whole.
class WholeLog : public kube::LineStream {
 public:
  explicit WholeLog(Lines lines) : lines_(std::move(lines)) {}
  Result<std::string> next(MonoTime) override {
    if (at_ < lines_.size()) return lines_[at_++];
    return Error(Code::kUnavailable, "the end").set_reason(std::string(kube::kStreamEnd));
  }
  void stop() override {}

 private:
  Lines lines_;
  std::size_t at_ = 0;
};

// Refuses the verb on the resource, as it is told to.
struct Refuses : kube::FaultHook {
  std::optional<Error> before(const kube::Operation& operation) override {
    if (!error || operation.verb != verb || operation.type.plural != plural) return std::nullopt;
    return error;
  }
  std::optional<Error> after(const kube::Operation&) override { return std::nullopt; }
  std::optional<Error> error;
  kube::Verb verb = kube::Verb::kList;
  std::string plural = "pods";
};

// A job of two pods, in virtual time.
struct FollowedLogs : ::testing::Test {
  FollowedLogs() {
    for (const std::string name : {"gpt-worker-0", "gpt-worker-1"}) {
      world.make(kube::types::kPod, "default",
                 parsed(R"({"metadata":{"name":")" + name + R"(","labels":{")" +
                        std::string(api::kLabelJob) + R"(":"gpt"}},"spec":{"nodeName":"n1",)" +
                        R"("containers":[{"name":"worker","image":"x"}]}})"));
      world.set_status(kube::types::kPod, name, R"({"phase":"Running"})");
    }
  }
  // The job and its pods end after so long.
  void end_after(Duration wait) {
    world.sim.at(world.sim.now() + wait, [this] {
      for (const char* name : {"gpt-worker-0", "gpt-worker-1"})
        world.set_status(kube::types::kPod, name, R"({"phase":"Succeeded"})");
      world.set_status(api::kTrainingJob, "gpt", R"({"state":"Complete"})");
    });
  }
  // The lines up to the end, which is returned.
  Error follow(JobLogs& logs) {
    while (true) {
      auto line = logs.next(world.home.now() + 60s);
      if (!line.ok()) return line.error();
      lines.push_back(line->pod + ": " + line->line);
    }
  }
  LogSource source(std::function<Result<Lines>(const std::string& path)> log) {
    return {client, world.home,
            [log = std::move(log)](
                const std::string& path) -> Result<std::unique_ptr<kube::LineStream>> {
              TRY(Lines lines, log(path));
              return std::unique_ptr<kube::LineStream>(new WholeLog(std::move(lines)));
            }};
  }
  static bool is_of(const std::string& path, int worker) {
    return path.find("gpt-worker-" + std::to_string(worker)) != std::string::npos;
  }
  JobLogs::Say say() {
    return [this](const std::string& text) { said.push_back(text); };
  }

  JobWorld world;
  Refuses refuses;
  kube::MemoryClient client{world.server, world.home, &refuses};
  Lines lines;
  Lines said;
};

const Error kForbidden = Error(Code::kDenied, "pods/log is forbidden").set_reason("Forbidden");

TEST_F(FollowedLogs, APodThatCannotBeReadIsNamedOnce) {
  end_after(20s);
  JobLogs logs(source([](const std::string& path) -> Result<Lines> {
                 if (is_of(path, 0)) return Error(Code::kInternal, "no route to its kubelet");
                 return Lines{"2026-11-21T08:00:00Z a"};
               }),
               "default", "gpt", say());
  EXPECT_EQ(follow(logs).code(), Code::kCancelled);
  EXPECT_EQ(lines, Lines{"gpt-worker-1: a"});
  EXPECT_EQ(said, Lines{"pod gpt-worker-0 on node n1: no route to its kubelet; trying again"});
}

TEST_F(FollowedLogs, WhereNoneCanBeReadTheEndIsAnError) {
  end_after(20s);
  JobLogs logs(source([](const std::string&) -> Result<Lines> { return kForbidden; }), "default",
               "gpt", say());
  const Error end = follow(logs);
  EXPECT_EQ(end.code(), Code::kNotFound);
  EXPECT_TRUE(end.what().starts_with("no log of job default/gpt can be read")) << end.what();
  EXPECT_EQ(said.size(), 2u) << "once for each pod";
}

TEST_F(FollowedLogs, WhoMayNotListPodsHearsSoAtOnce) {
  refuses.error = kForbidden;
  JobLogs logs(source([](const std::string&) -> Result<Lines> { return Lines{}; }), "default",
               "gpt", say());
  EXPECT_EQ(follow(logs).code(), Code::kDenied);
}

TEST_F(FollowedLogs, WhoMayNotGetPodsReadsThemToTheEnd) {
  refuses.error = kForbidden;
  refuses.verb = kube::Verb::kGet;
  end_after(20s);
  JobLogs logs(
      source([](const std::string&) -> Result<Lines> { return Lines{"2026-11-21T08:00:00Z a"}; }),
      "default", "gpt", say());
  EXPECT_EQ(follow(logs).code(), Code::kCancelled);
  EXPECT_EQ(lines.size(), 2u);
}

TEST_F(FollowedLogs, AServerThatIsAwayIsToldOnceAndWaitedFor) {
  refuses.error = Error(Code::kUnavailable, "cannot connect");
  world.sim.at(world.sim.now() + 10s, [&] { refuses.error.reset(); });
  end_after(20s);
  JobLogs logs(
      source([](const std::string&) -> Result<Lines> { return Lines{"2026-11-21T08:00:00Z a"}; }),
      "default", "gpt", say());
  EXPECT_EQ(follow(logs).code(), Code::kCancelled);
  EXPECT_EQ(lines.size(), 2u);
  EXPECT_EQ(said, Lines{"cannot connect; trying again"});
}

}  // namespace
}  // namespace rubato::ctl
