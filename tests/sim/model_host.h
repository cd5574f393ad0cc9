// ModelHost: a WorkerHost whose workers are ModelWorkers, driven by one fiber of the pod's process.
#pragma once

#include "tests/sim/model_worker.h"
#include "worker/agent/worker_host.h"

#include <map>
#include <memory>
#include <mutex>

namespace rubato::sim {

class ModelHost : public worker::WorkerHost {
 public:
  ModelHost(Executor& executor, World& world, std::string pod_uid, std::string host);
  ~ModelHost() override;

  Status spawn(std::uint32_t slot, std::uint64_t incarnation) override;
  Status send(std::uint32_t slot, const std::string& command) override;
  void kill(std::uint32_t slot) override;
  Result<worker::HostEvent> next(MonoTime deadline) override;
  // The slot's present worker hangs until it is killed.
  void hang(std::uint32_t slot);
  bool hangs();

 private:
  struct Life {
    std::uint64_t incarnation = 0;
    std::unique_ptr<ModelWorker> worker;
  };
  void drive(const std::stop_token& stop);
  MonoTime next_wake();                                     // with the mutex held
  void poke();                                              // with the mutex held
  void end(std::uint32_t slot, int exit_code, int signal);  // with the mutex held
  void put(worker::HostEvent event);                        // with the mutex held

  Executor& executor_;
  World& world_;
  const std::string pod_uid_;
  const std::string host_;
  std::mutex mutex_;
  std::unique_ptr<Condition> changed_;  // an event, for next()
  std::unique_ptr<Condition> poked_;    // something to do, for the driver
  bool poke_ = false;
  std::map<std::uint32_t, Life> lives_;
  std::deque<worker::HostEvent> events_;
  Task driver_;
};

}  // namespace rubato::sim
