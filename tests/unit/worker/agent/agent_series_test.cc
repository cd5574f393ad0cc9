#include "worker/agent/agent_series.h"

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

wire::WorkerEvent event(std::uint64_t incarnation, std::uint64_t micro, std::uint64_t tokens) {
  wire::WorkerEvent made;
  made.mutable_standing()->mutable_id()->set_incarnation(incarnation);
  made.mutable_standing()->set_phase(wire::WORKER_TRAINING);
  made.mutable_standing()->set_micro_done(micro);
  made.mutable_standing()->set_tokens(tokens);
  return made;
}

wire::WorkerEvent with_phase(wire::WorkerEvent made, const std::string& name, double seconds) {
  wire::PhaseTime& phase = *made.add_phases();
  phase.set_name(name);
  phase.set_seconds(seconds);
  return made;
}

bool has(const AgentSeries& agent, const std::string& line) {
  Exposition out;
  expose(agent, out);
  return out.text().find("\n" + line + "\n") != std::string::npos;
}

TEST(AgentSeries, ShowsWhoseAgentItIsAndWhatItsWorkersDo) {
  AgentSeries agent{.job = "team/gpt", .pod = "gpt-w1", .node = "n1", .connected = true};
  agent.workers[0].take(with_phase(event(1, 4, 0), "compute", 2.5), MonoTime{} + 1s);
  wire::WorkerEvent broken = event(1, 4, 0);
  broken.mutable_suspect()->set_why("reset");
  agent.workers[0].take(broken, MonoTime{} + 2s);
  EXPECT_TRUE(
      has(agent, R"(rubato_agent_info{namespace="team",job_name="gpt",pod="gpt-w1",node="n1"} 1)"));
  EXPECT_TRUE(has(agent, "rubato_agent_connected 1"));
  EXPECT_TRUE(has(agent, R"(rubato_worker_state{slot="0",state="training"} 1)"));
  EXPECT_TRUE(has(agent, R"(rubato_worker_phase_seconds_total{slot="0",phase="compute"} 2.5)"));
  EXPECT_TRUE(has(agent, R"(rubato_worker_micro_batches_total{slot="0"} 4)"));
  EXPECT_TRUE(has(agent, R"(rubato_worker_link_failures_total{slot="0"} 1)"));
}

TEST(AgentSeries, CountersGoOnOverARestart) {
  AgentSeries agent;
  WorkerSeries& worker = agent.workers[0];
  worker.take(with_phase(event(1, 10, 0), "compute", 5), MonoTime{} + 1s);
  worker.take(with_phase(event(2, 1, 0), "compute", 0.5), MonoTime{} + 2s);
  EXPECT_EQ(worker.micro_batches, 11U);
  EXPECT_TRUE(has(agent, R"(rubato_worker_phase_seconds_total{slot="0",phase="compute"} 5.5)"));
}

// Who pulls or waits shows life by the same number.
TEST(AgentSeries, MicroBatchesAreCountedWhileItTrains) {
  WorkerSeries worker;
  const auto take = [&](std::uint64_t micro, wire::WorkerPhase phase) {
    wire::WorkerEvent said = event(1, micro, 0);
    said.mutable_standing()->set_phase(phase);
    worker.take(said, MonoTime{} + 1s);
    return worker.micro_batches;
  };
  EXPECT_EQ(take(2, wire::WORKER_STARTING), 0U);
  EXPECT_EQ(take(360, wire::WORKER_FOLLOWING), 0U);
  EXPECT_EQ(take(360, wire::WORKER_TRAINING), 0U);
  EXPECT_EQ(take(364, wire::WORKER_TRAINING), 4U);
  EXPECT_EQ(take(365, wire::WORKER_ABORTED), 5U) << "computed before the abort";
  EXPECT_EQ(take(366, wire::WORKER_READY), 5U);
}

TEST(AgentSeries, SpeedIsTokensOverTheWindow) {
  WorkerSeries worker;
  worker.take(event(1, 0, 1000), MonoTime{} + 10s);
  worker.take(event(1, 0, 1500), MonoTime{} + 15s);
  EXPECT_EQ(worker.tokens_per_second, 0);
  worker.take(event(1, 0, 3000), MonoTime{} + 20s);
  EXPECT_EQ(worker.tokens_per_second, 200);
  wire::WorkerEvent parked = event(1, 0, 3000);
  parked.mutable_standing()->set_phase(wire::WORKER_PARKED);
  worker.take(parked, MonoTime{} + 21s);
  EXPECT_EQ(worker.tokens_per_second, 0);
}

TEST(AgentSeries, PhasesAreBounded) {
  AgentSeries agent;
  for (int i = 0; i < 1000; ++i)
    agent.workers[0].take(with_phase(event(1, 0, 0), "p" + std::to_string(i), 1), MonoTime{} + 1s);
  EXPECT_EQ(agent.workers[0].phases.size(), kPhasesMost);
}

}  // namespace
}  // namespace rubato::worker
