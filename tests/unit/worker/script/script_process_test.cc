// ScriptProcess with a program by hand.
#include "worker/script/script_process.h"

#include "worker/protocol/wire.pb.h"

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

namespace rubato::worker {
namespace {

struct FakeProgram : Program {
  Status start(const std::vector<std::string>& command,
               const std::map<std::string, std::string>& variables) override {
    if (fails) return Error(Code::kNotFound, "starting it: no such file");
    started.push_back(command);
    environment = variables;
    return ok();
  }
  void prepare(MonoTime, const std::vector<std::string>&,
               const std::map<std::string, std::string>&) override {
    ++prepared;
  }
  void signal(int number) override { signals.push_back(number); }
  std::optional<ProgramEnd> take_end() override { return std::exchange(end, std::nullopt); }

  bool fails = false;
  int prepared = 0;
  std::vector<std::vector<std::string>> started;
  std::map<std::string, std::string> environment;
  std::vector<int> signals;
  std::optional<ProgramEnd> end;
};

class Script : public testing::Test {
 protected:
  void TearDown() override {
    std::filesystem::remove(error_file);
    std::filesystem::remove(progress_file);
  }
  static std::string temporary(const std::string& name) {
    return testing::TempDir() + "script-" + name + "-" + std::to_string(::getpid());
  }
  void tell(const std::function<void(wire::WorkerCommand&)>& fill) {
    wire::WorkerCommand command;
    fill(command);
    process.command(now, command.SerializeAsString());
  }
  void configure() {
    tell([](auto& command) { command.mutable_configure(); });
  }
  void abort(std::uint64_t below) {
    tell([&](auto& command) { command.mutable_abort()->set_below(below); });
  }
  void form(std::uint64_t generation, bool parked = false) {
    tell([&](auto& command) {
      wire::Form& form = *command.mutable_form();
      form.set_generation(generation);
      form.set_mode(wire::FORM_START);
      form.set_parked(parked);
      *form.add_members()->mutable_id() = last().standing().id();
      *form.mutable_members(0)->mutable_address() = last().standing().listen();
    });
  }
  void stop() {
    tell([](auto& command) { command.mutable_request()->set_stop(true); });
  }
  void end(int exit_code, int signal = 0) {
    program.end = ProgramEnd{exit_code, signal};
    process.tick(now);
  }
  void after(Duration time) {
    now += time;
    process.tick(now);
  }
  const wire::WorkerEvent& last() const { return said.back(); }
  wire::WorkerPhase phase() const { return last().standing().phase(); }

  MonoTime now{std::chrono::hours(1)};
  FakeProgram program;
  std::vector<wire::WorkerEvent> said;
  std::string error_file = temporary("error");
  std::string progress_file = temporary("progress");
  ScriptProcess process{
      {.pod_uid = "p",
       .host = "10.0.0.1",
       .command = {"python3", "-m", "torch.distributed.launch", "--role", "x", "t.py"},
       .error_file = error_file,
       .progress_file = progress_file,
       .has_spares = true,
       .stop_limit = stop_limit_of(120s),
       .program = program,
       .send =
           [this](const std::string& event) {
             ASSERT_TRUE(said.emplace_back().ParseFromString(event));
           }},
      now};
};

TEST_F(Script, ItBeginsWithAFormAndRuns) {
  EXPECT_EQ(phase(), wire::WORKER_STARTING);
  form(1);
  EXPECT_TRUE(program.started.empty()) << "not configured";
  configure();
  EXPECT_EQ(phase(), wire::WORKER_READY);
  const auto port = last().standing().listen().port();
  EXPECT_GT(port, 0u);
  form(1);
  EXPECT_EQ(phase(), wire::WORKER_TRAINING);
  EXPECT_EQ(program.started.at(0),
            (std::vector<std::string>{"python3", "-u", "t.py", "--local-rank=0"}));
  EXPECT_EQ(program.environment.at("MASTER_PORT"), std::to_string(port));
  EXPECT_EQ(program.environment.at("ROLE_NAME"), "x");
  EXPECT_FALSE(last().standing().has_state());
  EXPECT_EQ(last().standing().seq(), 0u);
  const auto done = last().standing().micro_done();
  after(kRunsAfter);
  EXPECT_EQ(last().standing().seq(), 1u);
  after(kStandingPause);
  EXPECT_GT(last().standing().micro_done(), done);
  form(1);
  EXPECT_EQ(program.started.size(), 1u) << "told twice";
}

TEST_F(Script, AnAbortIsAnsweredWhenTheProgramIsGone) {
  configure();
  form(1);
  const auto port = last().standing().listen().port();
  abort(2);
  EXPECT_EQ(program.signals, std::vector<int>{SIGTERM});
  EXPECT_EQ(last().standing().fenced_below(), 0u);
  form(2);  // it waits
  after(kEndLimit - 1s);
  EXPECT_EQ(program.signals.size(), 1u);
  after(1s);
  EXPECT_EQ(program.signals.back(), SIGKILL);
  end(-1, SIGKILL);
  EXPECT_EQ(last().standing().fenced_below(), 2u);
  EXPECT_EQ(last().standing().generation(), 2u);
  EXPECT_EQ(phase(), wire::WORKER_TRAINING);
  EXPECT_EQ(program.started.size(), 2u);
  EXPECT_NE(last().standing().listen().port(), port);
  for (const auto& event : said) EXPECT_FALSE(event.has_failure());
  form(1);
  abort(2);
  EXPECT_EQ(program.started.size(), 2u) << "old news";
}

TEST_F(Script, HowFarItIsIsWhatTheProgramTells) {
  std::ofstream(progress_file) << "{\"step\": 99}\n";
  configure();
  form(1);
  after(kRunsAfter);
  EXPECT_EQ(last().standing().step(), 0u) << "of a life that is over";
  const auto seq = last().standing().seq();
  std::ofstream(progress_file) << "{\"step\": 10, \"tokens\": 1000, \"loss\": 3}\n";
  after(1s);
  EXPECT_EQ(last().standing().step(), 10u);
  EXPECT_EQ(last().standing().tokens(), 1000u);
  EXPECT_GT(last().standing().seq(), seq);
  EXPECT_EQ(last().standing().step_seconds(), 0) << "not known yet";
  std::ofstream(progress_file, std::ios::app) << "{\"step\": 14, \"tokens\": 1400}\n";
  after(2s);
  EXPECT_EQ(last().standing().step_seconds(), 0.5);
  after(2s);
  EXPECT_EQ(last().standing().step(), 14u);
}

TEST_F(Script, ProgressThatIsNotUnderstoodIsPassedOver) {
  configure();
  form(1);
  after(kRunsAfter);
  std::ofstream(progress_file) << "{\"step\": 10.0, \"loss\": NaN}\n";
  after(1s);
  EXPECT_EQ(last().standing().step(), 10u);
  std::ofstream(progress_file) << "{\"step\": 11, \"note\": \"" + std::string(5000, 'x') + "\"}\n";
  after(1s);
  EXPECT_EQ(last().standing().step(), 10u);
}

TEST_F(Script, TheLastStepIsToldAtTheEnd) {
  configure();
  form(1);
  after(kRunsAfter);
  std::ofstream(progress_file) << "{\"step\": 10, \"loss\": 3}\n";
  end(0);
  EXPECT_EQ(phase(), wire::WORKER_FINISHED);
  EXPECT_EQ(last().standing().step(), 10u);
}

TEST_F(Script, ASpareIsMadeOnceTheProgramHasBegun) {
  configure();
  form(1);
  after(kSpareAfter - 1s);
  EXPECT_EQ(program.prepared, 0);
  after(1s);
  EXPECT_EQ(program.prepared, 1);
  abort(2);
  after(2s);
  EXPECT_EQ(program.prepared, 1) << "it ends";
}

TEST_F(Script, HowItEndsIsSaid) {
  configure();
  form(1);
  std::ofstream(error_file) << "old";
  end(0);
  EXPECT_EQ(phase(), wire::WORKER_FINISHED);
  abort(2);
  EXPECT_EQ(phase(), wire::WORKER_ABORTED);
  form(2);
  EXPECT_FALSE(std::ifstream(error_file).good()) << "of a life that is over";
  std::ofstream(error_file) << R"({"message":{"message":"ValueError: x"},"more":")"
                            << std::string(2 << 20, 'x') << "\"}";
  end(3);
  EXPECT_EQ(phase(), wire::WORKER_ABORTED);
  EXPECT_EQ(last().failure().message(), "the program exited with status 3: ValueError: x");
  EXPECT_EQ(last().failure().scope(), wire::FAILURE_SCOPE_ATTEMPT);
  abort(3);
  program.fails = true;
  form(3);
  EXPECT_EQ(phase(), wire::WORKER_ABORTED);
  EXPECT_EQ(last().failure().message(), "starting it: no such file");
  EXPECT_EQ(last().standing().generation(), 3u);
}

TEST_F(Script, AStopEndsTheProgramAndAFormIsTheWayBack) {
  configure();
  form(1);
  stop();
  EXPECT_EQ(program.signals, std::vector<int>{SIGTERM});
  end(1);
  EXPECT_EQ(phase(), wire::WORKER_STOPPED);
  EXPECT_FALSE(last().has_failure());
  abort(2);
  form(2, true);
  EXPECT_EQ(phase(), wire::WORKER_PARKED);
  EXPECT_EQ(program.started.size(), 1u);
  stop();
  EXPECT_EQ(phase(), wire::WORKER_STOPPED);
  abort(3);
  form(3);
  EXPECT_EQ(phase(), wire::WORKER_TRAINING);
}

TEST_F(Script, AStopGivesTheGracePeriod) {
  static_assert(stop_limit_of(120s) == 115s && stop_limit_of(8s) == 6s);
  configure();
  form(1);
  stop();
  after(114s);
  EXPECT_EQ(program.signals, std::vector<int>{SIGTERM});
  after(1s);
  EXPECT_EQ(program.signals.back(), SIGKILL);
}

TEST_F(Script, AnAbortShortensAStop) {
  configure();
  form(1);
  stop();
  abort(2);
  after(kEndLimit - 1s);
  EXPECT_EQ(program.signals, std::vector<int>{SIGTERM});
  after(1s);
  EXPECT_EQ(program.signals.back(), SIGKILL);
}

TEST_F(Script, ItRetiresWhenTheProgramIsGone) {
  configure();
  form(1);
  tell([](auto& command) { command.mutable_retire(); });
  EXPECT_FALSE(process.is_over());
  after(kRetireLimit);
  EXPECT_EQ(program.signals, (std::vector<int>{SIGTERM, SIGKILL}));
  end(-1, SIGKILL);
  EXPECT_TRUE(process.is_over());
}

TEST_F(Script, WhatItIsAskedIsAnswered) {
  configure();
  tell([](auto& command) { command.mutable_look()->set_number(7); });
  EXPECT_EQ(last().standing().looked(), 7u);
  EXPECT_FALSE(last().standing().has_checkpoint());
  tell([&](auto& command) {
    command.mutable_probe()->set_generation(4);
    *command.mutable_probe()->add_members()->mutable_id() = last().standing().id();
  });
  EXPECT_EQ(last().reach().reached_size(), 1);
  const std::size_t count = said.size();
  process.command(now, "\xff\xff");
  tell([](auto& command) { command.mutable_follow(); });
  EXPECT_EQ(said.size(), count);
}

}  // namespace
}  // namespace rubato::worker
