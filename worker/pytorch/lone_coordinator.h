// LoneCoordinator: what a worker hears that trains alone, without an operator: configure, start
// from the newest checkpoint or the seed, retire when the last step is committed. Its training is
// the job's own code, and so are its bits.
//
// Thread-safe: events come from any thread of the worker, and commands are sent from there.
#pragma once

#include "worker/collective/link_network.h"
#include "worker/protocol/wire.pb.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace rubato::worker {

class LoneCoordinator {
 public:
  // `send` takes a serialised wire::WorkerCommand.
  LoneCoordinator(std::string training, std::uint32_t micro_batches,
                  std::function<void(const std::string& command)> send);
  void start();
  void hear(const wire::WorkerEvent& event);
  // Why the worker failed; empty: it did not.
  std::string failure() const;

 private:
  void send(const wire::WorkerCommand& command) { send_(command.SerializeAsString()); }
  const std::string training_;
  const std::uint32_t micro_batches_;
  const std::function<void(const std::string&)> send_;
  mutable std::mutex mutex_;
  bool has_formed_ = false;
  bool is_finished_ = false;
  std::string failure_;
};

// Nobody comes, and nobody can be reached.
std::unique_ptr<LinkNetwork> make_lone_network();

}  // namespace rubato::worker
