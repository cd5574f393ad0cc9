// WorkerProcess: all of a worker but its process: hub, engine, and how a job's replica is put
// together. main.cc gives it threads, TLS and the socket to the agent; a simulation gives it
// fibers, links and disks in virtual time.
//
// Threads: run() is the step thread; command() and beat() belong to one control thread, which lives
// beside it and calls leave() when the agent is gone.
#pragma once

#include "common/executor.h"
#include "common/files.h"
#include "worker/collective/communicator.h"
#include "worker/collective/link_hub.h"
#include "worker/collective/link_network.h"
#include "worker/collective/peer.h"
#include "worker/main/hooks.h"
#include "worker/step/model_replica.h"

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace rubato::worker {

constexpr auto kBeat = 250ms;  // beat() is due this often

std::unique_ptr<CommunicatorFactory> make_tcp_factory(LinkHub& hub, Device& device);
// Gradients go by what the device has of its own, where it has anything; why it has not is logged.
std::unique_ptr<CommunicatorFactory> make_device_factory(LinkHub& hub, Device& device);

struct WorkerParts {
  Executor& executor;
  FileSystem& files;
  std::unique_ptr<LinkNetwork> network;
  std::string job_uid;
  WorkerName self;
  std::string host;            // where peers reach the network's port
  std::string cpu;             // for people
  std::string device = "cpu";  // DeviceSpec::kind
  // A serialised wire::WorkerEvent for the agent. Any thread; must not block.
  std::function<void(const std::string& event)> send;
  // Lines for people and tools, without the newline. Any thread.
  std::function<void(const std::string& line)> print;
  // A simulation has a device and a model of its own.
  std::function<Result<std::unique_ptr<Replica>>(const TrainingConfig&, const ReplicaOptions&)>
      make_replica = make_model_replica;
  // … and stands in for other builds.
  std::function<std::unique_ptr<CommunicatorFactory>(LinkHub&, Device&)> make_factory =
      make_tcp_factory;
  Hooks hooks;
};

class WorkerProcess {
 public:
  explicit WorkerProcess(WorkerParts parts);
  ~WorkerProcess();
  // A serialised wire::WorkerCommand; one that cannot be read is ignored.
  void command(const std::string& body);
  void beat();
  // As StepEngine::run().
  int run();
  void leave(const std::string& reason);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::worker
