// Speed of the ring all-reduce over loopback, TLS included: one process per member, as in a job.
//   collective_bench [--members N] [--mebibytes M] [--rounds R]
// Algorithm bandwidth = bytes of the buffer / time, the slowest member's median. Also: how long an
// abort takes to free a member that waits inside an all-reduce.
#include "tests/unit/worker/support/host_device.h"
#include "tests/unit/worker/support/job_secret.h"
#include "worker/collective/tcp_communicator.h"
#include "worker/collective/tls_link_network.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato::worker {
namespace {

struct Plan {
  std::uint32_t members = 2;
  std::int64_t mebibytes = 16;
  int rounds = 15;
};

Buffer buffer(std::vector<std::int32_t>& values) {
  return {values.data(), static_cast<std::int64_t>(values.size()), DType::kI32};
}
// CPU time of this process: what the transport costs, however busy the machine is.
double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}
double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// Ports travel through a socket pair to the parent and back.
int member(const Plan& plan, std::uint32_t rank, const std::string& secret_dir, int pipe) {
  auto network = TlsLinkNetwork::open({.job_uid = "bench", .secret_dir = secret_dir});
  if (!network.ok()) return 1;
  ThreadExecutor executor;
  LinkHub hub(executor, std::move(network).value(),
              {.job_uid = "bench", .self = {"pod-" + std::to_string(rank), 0, 1}});
  std::vector<std::uint16_t> ports(plan.members, hub.port());
  const std::size_t bytes = ports.size() * sizeof(ports[0]);
  if (::write(pipe, &ports[0], sizeof ports[0]) != sizeof ports[0]) return 1;
  if (::read(pipe, ports.data(), bytes) != static_cast<ssize_t>(bytes)) return 1;
  Membership membership{1, {}, rank};
  for (std::uint32_t i = 0; i < plan.members; ++i) {
    membership.members.push_back({{"pod-" + std::to_string(i), 0, 1}, "127.0.0.1", ports[i]});
  }
  HostDevice device;
  ImmediateStream stream;
  TcpCommunicatorFactory factory(hub, device);
  const SystemClock clock;
  auto made = factory.create(membership, clock.now() + 20s);
  if (!made.ok()) return 1;
  Communicator& all = *made.value();
  const auto count = static_cast<std::size_t>(plan.mebibytes << 20) / sizeof(std::int32_t);
  std::vector<std::int32_t> in(count, 1);
  std::vector<std::int32_t> out(count);
  std::vector<double> times;
  std::vector<double> votes;
  double cpu = 0;
  for (int round = 0; round < plan.rounds; ++round) {
    if (!all.gather("ready").ok()) return 1;
    all.vote_by_tree();
    const MonoTime begun = clock.now();
    const double cpu_begun = cpu_seconds();
    if (!all.all_reduce_int32(stream, buffer(in), buffer(out)).ok()) return 1;
    const MonoTime reduced = clock.now();
    cpu += cpu_seconds() - cpu_begun;
    if (!all.gather("vote").ok()) return 1;
    times.push_back(seconds(reduced - begun));
    votes.push_back(seconds(clock.now() - reduced));
  }
  std::ranges::sort(times);
  std::ranges::sort(votes);
  const double middle = times[times.size() / 2];
  if (rank == 0) {
    std::printf(
        "members=%u MiB=%lld median=%.4fs GB/s=%.3f min=%.4fs max=%.4fs cpu=%.4fs vote=%.1fus\n",
        plan.members, static_cast<long long>(plan.mebibytes), middle,
        static_cast<double>(count * 4) / middle / 1e9, times.front(), times.back(),
        cpu / plan.rounds, votes[votes.size() / 2] * 1e6);
    MonoTime freed;
    std::thread waiting([&] {  // the others do not come
      [[maybe_unused]] const Status done = all.all_reduce_int32(stream, buffer(in), buffer(out));
      freed = clock.now();
    });
    std::this_thread::sleep_for(50ms);
    const MonoTime begun = clock.now();
    all.abort();
    waiting.join();
    std::printf("abort frees a waiting member in %.3f ms\n", seconds(freed - begun) * 1e3);
    std::fflush(stdout);
    return 0;
  }
  char byte = 0;
  [[maybe_unused]] const auto end = ::read(pipe, &byte, 1);  // stays until the parent is done
  return 0;
}

int run(const Plan& plan) {
  const JobSecret secret("bench");
  std::vector<int> pipes;
  std::vector<pid_t> children;
  for (std::uint32_t rank = 0; rank < plan.members; ++rank) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return 1;
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (const int other : pipes) ::close(other);
      ::close(pair[0]);
      ::_exit(member(plan, rank, secret.dir(), pair[1]));
    }
    ::close(pair[1]);
    pipes.push_back(pair[0]);
    children.push_back(pid);
  }
  std::vector<std::uint16_t> ports(plan.members);
  for (std::uint32_t i = 0; i < plan.members; ++i) {
    if (::read(pipes[i], &ports[i], sizeof ports[i]) != sizeof ports[i]) return 1;
  }
  for (const int pipe : pipes) {
    const std::size_t bytes = ports.size() * sizeof(ports[0]);
    if (::write(pipe, ports.data(), bytes) != static_cast<ssize_t>(bytes)) return 1;
  }
  int failed = 0;
  for (std::uint32_t i = 0; i < plan.members; ++i) {
    int status = 0;
    ::waitpid(children[i], &status, 0);
    failed |= status;
    if (i == 0) {
      for (const int pipe : pipes) ::close(pipe);
    }
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  rubato::worker::Plan plan;
  CLI::App app("ring all-reduce over loopback with TLS");
  app.add_option("--members", plan.members);
  app.add_option("--mebibytes", plan.mebibytes);
  app.add_option("--rounds", plan.rounds);
  CLI11_PARSE(app, argc, argv);
  return rubato::worker::run(plan);
}
