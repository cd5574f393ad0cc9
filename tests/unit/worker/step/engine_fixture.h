// Some workers of one job, each a StepEngine on threads of its own, told what to do by the test.
#pragma once

#include "tests/unit/worker/step/test_worker.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::worker {

class EngineFixture : public ::testing::Test {
 protected:
  void make(int count, std::uint64_t steps, const FakeTroubles& troubles = {}) {
    for (int i = 0; i < count; ++i) {
      workers_.push_back(std::make_unique<TestWorker>(i, secret_.dir(), steps, troubles));
    }
  }
  wire::WorkerCommand form(std::uint64_t generation, wire::FormMode mode,
                           const std::vector<int>& members) {
    wire::WorkerCommand command;
    command.mutable_form()->set_generation(generation);
    command.mutable_form()->set_mode(mode);
    for (const int number : members) {
      wire::Member& member = *command.mutable_form()->add_members();
      *member.mutable_id() = workers_[static_cast<std::size_t>(number)]->standing().id();
      *member.mutable_address() = workers_[static_cast<std::size_t>(number)]->standing().listen();
    }
    return command;
  }
  void tell(const std::vector<int>& numbers, const wire::WorkerCommand& command) {
    for (const int number : numbers) {
      workers_[static_cast<std::size_t>(number)]->engine().command(command);
    }
  }
  void abort(const std::vector<int>& numbers, std::uint64_t below) {
    wire::WorkerCommand command;
    command.mutable_abort()->set_below(below);
    tell(numbers, command);
    for (const int number : numbers) {
      EXPECT_TRUE(at(number).until(
          [&](const wire::WorkerStanding& s) { return s.fenced_below() >= below; }));
    }
  }
  // Steps take their time until the gate is open: they are not over before what the test does then.
  static FakeTroubles slowed_by(const std::shared_ptr<Gate>& gate) {
    FakeTroubles slow;
    slow.on_compute = [gate](std::uint64_t, std::uint32_t) { gate->pass_slowly(); };
    return slow;
  }
  TestWorker& at(int number) { return *workers_[static_cast<std::size_t>(number)]; }
  // The weight hash that rank 0 of an undisturbed single worker ends with.
  std::string reference(std::uint64_t steps, const FakeTroubles& troubles = {}) {
    TestWorker alone(99, secret_.dir(), steps, troubles);
    wire::WorkerCommand command;
    command.mutable_form()->set_generation(1);
    command.mutable_form()->set_mode(wire::FORM_START);
    wire::Member& member = *command.mutable_form()->add_members();
    *member.mutable_id() = alone.standing().id();
    *member.mutable_address() = alone.standing().listen();
    alone.engine().command(command);
    EXPECT_TRUE(alone.until_phase(wire::WORKER_FINISHED));
    return alone.lines("weights=").at(0);
  }

  JobSecret secret_{"job-1"};
  std::vector<std::unique_ptr<TestWorker>> workers_;
};

}  // namespace rubato::worker
