// A fleet of hubs in one process, as if each were a worker.
#pragma once

#include "tests/unit/worker/support/host_device.h"
#include "tests/unit/worker/support/job_secret.h"
#include "worker/collective/tcp_communicator.h"
#include "worker/collective/tls_link_network.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::worker {

constexpr auto kPatience = 60s;
inline MonoTime soon() { return SystemClock().now() + kPatience; }

inline std::unique_ptr<LinkHub> open_hub(Executor& executor, const std::string& job,
                                         const WorkerName& self, const std::string& secret_dir) {
  auto network = TlsLinkNetwork::open({.job_uid = job, .secret_dir = secret_dir});
  EXPECT_TRUE(network.ok()) << network.error().to_string();
  return std::make_unique<LinkHub>(executor, std::move(network).value(),
                                   LinkHubConfig{.job_uid = job, .self = self});
}

struct FleetMember {
  std::unique_ptr<LinkHub> hub;
  std::unique_ptr<TcpCommunicatorFactory> factory;
  Peer peer;
};

class Fleet {
 public:
  Fleet(std::uint32_t size, const std::string& secret_dir, Device& device,
        const std::string& job = "job-1") {
    for (std::uint32_t i = 0; i < size; ++i) {
      FleetMember member;
      member.peer.name = {"pod-" + std::to_string(i), 0, 1};
      member.hub = open_hub(executor, job, member.peer.name, secret_dir);
      member.factory = std::make_unique<TcpCommunicatorFactory>(*member.hub, device);
      member.peer.host = "127.0.0.1";
      member.peer.port = member.hub->port();
      members.push_back(std::move(member));
    }
  }

  // All members, in order, as generation `generation` seen by `rank`.
  Membership membership(std::uint64_t generation, std::uint32_t rank) const {
    Membership result;
    result.generation = generation;
    result.rank = rank;
    for (const FleetMember& member : members) result.members.push_back(member.peer);
    return result;
  }

  std::vector<std::unique_ptr<Communicator>> form(std::uint64_t generation) {
    std::vector<std::unique_ptr<Communicator>> all(members.size());
    each([&](std::uint32_t rank) {
      auto made = members[rank].factory->create(membership(generation, rank), soon());
      ASSERT_TRUE(made.ok()) << made.error().to_string();
      all[rank] = std::move(made).value();
    });
    return all;
  }

  // Runs `body(rank)` in one thread per member.
  template <class Body>
  void each(Body body) {
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < members.size(); ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }

  ThreadExecutor executor;
  std::vector<FleetMember> members;
};

}  // namespace rubato::worker
