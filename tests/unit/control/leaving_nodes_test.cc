#include "operator/control/leaving_nodes.h"

#include "tests/unit/control/fixtures.h"

namespace rubato::control {
namespace {

WallTime at_time(const char* text) { return *parse_rfc3339(text); }
const WallTime kMorning = at_time("2026-11-21T08:00:00Z");

std::shared_ptr<const kube::Node> tainted(const std::string& key, const std::string& effect) {
  return node("n1", 2, R"("taints":[{"key":")" + key + R"(","effect":")" + effect + R"("}])");
}

std::string why(const std::shared_ptr<const kube::Node>& of, WallTime now = kMorning) {
  return why_leaving(*of, now, config());
}

TEST(LeavingNodes, ATaintThatAnnouncesTheEndIsHeardWhateverItsEffect) {
  EXPECT_EQ(why(node("n1", 2)), "");
  EXPECT_EQ(why(tainted("example.com/gpu", "NoSchedule")), "");
  for (const char* effect : {"NoSchedule", "PreferNoSchedule", "NoExecute"})
    EXPECT_EQ(why(tainted("karpenter.sh/disrupted", effect)), "taint karpenter.sh/disrupted");
  Config other = config();
  other.leaving_taints = {"example.com/gpu"};
  EXPECT_EQ(why_leaving(*tainted("example.com/gpu", "NoSchedule"), kMorning, other),
            "taint example.com/gpu");
  EXPECT_EQ(why_leaving(*tainted("karpenter.sh/disrupted", "NoSchedule"), kMorning, other), "");
}

TEST(LeavingNodes, OneWithMaintenanceIsLeftFromTheLeadTimeOn) {
  const auto one = maintained("n1", "2026-11-21T10:00:00+01:00");
  EXPECT_EQ(why(one), "");
  EXPECT_EQ(why(one, at_time("2026-11-21T08:54:59Z")), "");
  EXPECT_EQ(why(one, at_time("2026-11-21T08:55:00Z")), "maintenance at 2026-11-21T09:00:00Z");
  EXPECT_NE(why(one, at_time("2026-11-22T09:00:00Z")), "");  // until the annotation goes
  Config patient = config();
  patient.maintenance_lead = 1h;
  EXPECT_NE(why_leaving(*one, kMorning, patient), "");
}

TEST(LeavingNodes, AnyTimeMayBeWrittenThereAndWhatIsNoneSaysNothing) {
  for (const char* text : {"", "tomorrow", "2026-12-01", "2026-13-01T00:00:00Z"}) {
    const auto one = maintained("n1", text);
    EXPECT_FALSE(maintenance_of(*one).ok()) << text;
    EXPECT_EQ(why(one), "") << text;
    EXPECT_EQ(next_leaving({one}, kMorning, config()), std::nullopt) << text;
  }
  EXPECT_NE(why(maintained("n1", "0001-01-01T00:00:00Z")), "");
  EXPECT_EQ(why(maintained("n1", "9999-12-31T23:59:59Z")), "");
}

TEST(LeavingNodes, TheNextOneIsKnown) {
  const auto next = [](const std::vector<std::shared_ptr<const kube::Node>>& nodes) {
    return next_leaving(nodes, kMorning, config());
  };
  const auto past = maintained("n1", "2026-11-21T08:05:00Z");  // left from now on
  const auto soon = maintained("n2", "2026-11-21T08:05:01Z");
  const auto later = maintained("n3", "2026-11-21T12:00:00Z");
  EXPECT_EQ(next({}), std::nullopt);
  EXPECT_EQ(next({node("n4", 2), past}), std::nullopt);
  EXPECT_EQ(next({later, soon, past}), kMorning + 1s);
}

TEST(LeavingNodes, AreCapturedAsSuch) {
  World world;
  world.wall = at_time("2026-11-21T08:56:00Z");
  world.nodes = {maintained("n1", "2026-11-21T09:00:00Z"),
                 maintained("n2", "2026-11-21T10:00:00Z")};
  auto state = capture(world, config());
  ASSERT_EQ(state.nodes.size(), 2u);
  EXPECT_TRUE(state.nodes[0].leaving);
  EXPECT_FALSE(state.nodes[0].schedulable);
  EXPECT_EQ(state.nodes[0].why_not, "maintenance at 2026-11-21T09:00:00Z");
  EXPECT_FALSE(state.nodes[1].leaving);
  EXPECT_TRUE(state.nodes[1].schedulable);
  world.wall += 1h;
  EXPECT_TRUE(capture(world, config()).nodes[1].leaving);
}

TEST(LeavingNodes, KeysOfTaintsAreRead) {
  const auto read = parse_taint_keys({"example.com/spot-ends", "", "drained"});
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, (std::vector<std::string>{"example.com/spot-ends", "drained"}));
  EXPECT_TRUE(parse_taint_keys({""}).value().empty());
  for (const char* wrong : {"key=value:NoSchedule", "key:NoSchedule", "two words"})
    EXPECT_FALSE(parse_taint_keys({wrong}).ok()) << wrong;
}

}  // namespace
}  // namespace rubato::control
