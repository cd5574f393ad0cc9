// RefusingExecutor: another executor, short of threads: tasks of the names that `refuses` says yes
// to are not started, as by a system that has no thread left.
#pragma once

#include "common/executor.h"

#include <functional>
#include <string>
#include <utility>

namespace rubato::testing {

class RefusingExecutor : public Executor {
 public:
  // `refuses` is called by whichever thread starts a task.
  RefusingExecutor(Executor& executor, std::function<bool(const std::string& name)> refuses)
      : executor_(executor), refuses_(std::move(refuses)) {}

  Clock& clock() override { return executor_.clock(); }
  std::unique_ptr<Condition> make_condition() override { return executor_.make_condition(); }
  Result<Task> try_spawn(std::string name, std::function<void(std::stop_token)> body) override {
    if (refuses_(name)) return Error(Code::kUnavailable, "starting the thread " + name);
    return executor_.try_spawn(std::move(name), std::move(body));
  }
  bool sleep_until(MonoTime time, std::stop_token stop) override {
    return executor_.sleep_until(time, std::move(stop));
  }

 private:
  Executor& executor_;
  const std::function<bool(const std::string& name)> refuses_;
};

}  // namespace rubato::testing
