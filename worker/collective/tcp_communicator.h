// Communicators over the hub's TLS links: a ring, each member sends to the next and receives from
// the one before. The all-reduce is a pipelined reduce-scatter and all-gather: a piece is passed on
// as soon as it has arrived, sending and receiving at once, in the calling thread alone (poll over
// both links), so that a worker needs no second core. Measured: docs/adr/cpu-collectives.md.
//
// Gradients go by what the device has of its own (NCCL) where that was asked for and all members of
// a generation offer the same: create() then connects it, too, beside what runs, and members tell
// each other how that went. Unless it went well for all, this generation adds over its links, with
// the same bits, and nobody offers it for some time: a minute, doubled with each failure in a row,
// at most some hour; nor for a minute at least where its sums were wrong. Where a sum fails there
// while links stand, who is to blame is the coordinator's to say: the member waits kVerdictLimit
// for that.
#pragma once

#include "worker/backend/device_collectives.h"
#include "worker/collective/communicator.h"
#include "worker/collective/link_hub.h"

#include <list>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>

namespace rubato::worker {

constexpr auto kVerdictLimit = 10s;

class TcpCommunicatorFactory : public CommunicatorFactory {
 public:
  // `hub`, `device` and `collectives`, its own or null, outlive the factory and its communicators.
  TcpCommunicatorFactory(LinkHub& hub, Device& device, DeviceCollectives* collectives = nullptr,
                         Duration verdict_limit = kVerdictLimit)
      : hub_(hub), device_(device), collectives_(collectives), verdict_limit_(verdict_limit) {}
  Result<std::unique_ptr<Communicator>> create(const Membership& membership,
                                               MonoTime deadline) override;
  void fence(std::uint64_t below) override;
  std::string collective() const override;
  void note_wrong_sums() override;

 private:
  class Pending;  // a create() under way
  void connect_device(class TcpCommunicator& communicator, const std::stop_token& stop,
                      MonoTime deadline);
  void note_connect(bool is_connected);

  LinkHub& hub_;
  Device& device_;
  DeviceCollectives* const collectives_;
  const Duration verdict_limit_;
  mutable std::mutex mutex_;
  std::list<Pending*> pending_;
  int connects_failed_ = 0;  // of the device's own, in a row
  MonoTime offers_from_{};
};
constexpr auto kOffersAgain = 1min;
constexpr int kOffersAgainDoublings = 6;
// NCCL takes longer where there are more. All wait as long for one that cannot connect: less than
// the coordinator waits for a generation of some hundreds.
constexpr Duration connect_limit(std::uint32_t members) { return 5s + members * 20ms; }

}  // namespace rubato::worker
