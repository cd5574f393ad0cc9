// Communicators over the hub's TLS links: a ring, each member sends to the next and receives from
// the one before. The all-reduce is a pipelined reduce-scatter and all-gather: a piece is passed on
// as soon as it has arrived, sending and receiving at once, in the calling thread alone (poll over
// both links), so that a worker needs no second core. Measured: docs/adr/cpu-collectives.md.
#pragma once

#include "worker/collective/communicator.h"
#include "worker/collective/link_hub.h"

#include <list>
#include <memory>
#include <mutex>
#include <stop_token>

namespace rubato::worker {

class TcpCommunicatorFactory : public CommunicatorFactory {
 public:
  // `hub` and `device` outlive the factory and its communicators.
  TcpCommunicatorFactory(LinkHub& hub, Device& device) : hub_(hub), device_(device) {}
  Result<std::unique_ptr<Communicator>> create(const Membership& membership,
                                               MonoTime deadline) override;
  void fence(std::uint64_t below) override;

 private:
  struct Pending {
    std::uint64_t generation = 0;
    std::stop_source cancel;
  };
  LinkHub& hub_;
  Device& device_;
  std::mutex mutex_;
  std::list<Pending> pending_;  // create() calls under way
};

}  // namespace rubato::worker
