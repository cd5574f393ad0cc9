// The coordinator under many agents, over real TLS on loopback; the agents in a process of their
// own, so that its CPU and memory are its own. At rest; after a fail-over; when one is lost.
//   coordinator_load [AGENTS [JOBS]]     10000 in 10 jobs
#include "apiserver/memory/memory_client.h"
#include "common/json.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/net/certificates.h"
#include "operator/api/crd.h"
#include "operator/api/kinds.h"
#include "operator/api/resources.h"
#include "operator/coordinator/coordinator.h"
#include "tests/bench/load_agents.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato::bench {
namespace {

constexpr const char* kMaster = "the key of a benchmark";
constexpr auto kPatience = 180s;
constexpr auto kRest = 20s;

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Of another process, from its first moment.
double cpu_seconds_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string word;
  double ticks = 0;
  for (int i = 1; i <= 15 && file >> word; ++i)  // our name has no blank
    if (i >= 14) ticks += std::atof(word.c_str());
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double resident_mib() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  file >> total >> resident;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 20);
}

double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

class Load {
 public:
  Load(int agents, int jobs) : server_(executor_.clock()), client_(server_, executor_) {
    for (const api::Kind& kind : api::kinds())
      CHECK(server_.create(kube::types::kCustomResourceDefinition, "", api::crd(kind)).ok());
    const WallTime now = executor_.clock().wall();
    authority_ = net::make_authority("load", now - 1h, now + 24h).value();
    for (int job = 0; job < jobs; ++job) make_job(job, agents / jobs);
  }

  // The agents' process: writes a line when it is asked to lose one.
  int be_agents(int port, int from, int to) {
    LoadAgents agents(executor_, {"127.0.0.1", static_cast<std::uint16_t>(port)}, jobs_);
    char byte = 0;
    while (::read(from, &byte, 1) == 1) {
      const std::string line = agents.lose_one();
      if (::write(to, line.data(), line.size()) < 0) break;
    }
    ::_exit(0);  // ten thousand farewells are not waited for
  }

  bool run() {
    int asks[2];
    int answers[2];
    CHECK(::pipe(asks) == 0 && ::pipe(answers) == 0);
    // Its port is chosen, and it is forked, before there is any thread.
    const int port = 20'000 + static_cast<int>(::getpid() % 20'000);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(asks[1]);
      ::close(answers[0]);
      be_agents(port, asks[0], answers[1]);
    }
    ::close(asks[0]);
    ::close(answers[1]);
    network_ = std::make_unique<net::TlsNetwork>(executor_);
    agents_ = child;
    const bool ok = measure(port, asks[1], answers[0]);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    coordinator_.reset();
    return ok;
  }

 private:
  void make_job(int number, int agents) {
    const auto made = json::parse(fmt::format(R"({{"apiVersion":"rubato.dev/v1alpha1",
      "kind":"TrainingJob","metadata":{{"name":"load-{}","namespace":"default"}},
      "spec":{{"runtime":"command","gpus":{{"min":1,"max":{}}},
      "template":{{"spec":{{"containers":[{{"name":"worker","image":"none"}}]}}}}}}}})",
                                              number, agents));
    const kube::Key key{"default", fmt::format("load-{}", number)};
    const auto created = server_.create(api::kTrainingJob, key.ns, made.value());
    CHECK(created.ok());
    LoadJob job;
    job.uid = kube::uid_of(server_.get(api::kTrainingJob, key).value());
    job.token = net::hmac_sha256_hex(kMaster, job.uid);
    job.agents = agents;
    const WallTime now = executor_.clock().wall();
    const auto pair = net::issue_certificate(authority_, {.common_name = job.uid,
                                                          .dns_names = {job.uid},
                                                          .not_before = now - 1h,
                                                          .not_after = now + 24h})
                          .value();
    job.tls = {.certificate = pair.certificate,
               .private_key = pair.private_key,
               .authority = authority_.certificate,
               .peer_name = "rubato-operator"};
    jobs_.push_back(std::move(job));
  }

  coordinator::Wish wish(int number) const {
    const LoadJob& job = jobs_[static_cast<std::size_t>(number)];
    coordinator::Wish wish;
    wish.job = {"default", fmt::format("load-{}", number)};
    wish.uid = job.uid;
    wish.training = "{}";
    wish.micro_batches = static_cast<std::uint32_t>(job.agents);
    wish.start_workers = static_cast<std::uint32_t>(job.agents);
    for (int pod = 0; pod < job.agents; ++pod)
      wish.pods.push_back({fmt::format("load-{}", pod), LoadAgents::pod_uid(job.uid, pod),
                           fmt::format("n{}", pod), "H100", 1, false});
    return wish;
  }

  void lead(int port, std::uint64_t epoch) {
    const WallTime now = executor_.clock().wall();
    const auto pair = net::issue_certificate(authority_, {.common_name = "rubato-operator",
                                                          .dns_names = {"rubato-operator"},
                                                          .not_before = now - 1h,
                                                          .not_after = now + 24h})
                          .value();
    net::TlsConfig tls{.certificate = pair.certificate,
                       .private_key = pair.private_key,
                       .authority = authority_.certificate,
                       .require_peer_certificate = true};
    const bool started = until([&] {
      coordinator_ = std::make_unique<coordinator::Coordinator>(
          coordinator::Dependencies{.executor = executor_,
                                    .network = *network_,
                                    .client = client_,
                                    .metrics = metrics_,
                                    .credentials = {kMaster, tls},
                                    .listen = {"127.0.0.1", static_cast<std::uint16_t>(port)},
                                    .leader_address = [] { return ""; },
                                    .identity = fmt::format("operator-{}", epoch)});
      return coordinator_->start().ok();
    });
    CHECK(started);
    coordinator_->lead(epoch);
    for (int job = 0; job < static_cast<int>(jobs_.size()); ++job) coordinator_->ensure(wish(job));
  }

  bool until(const std::function<bool()>& done) {
    const MonoTime deadline = executor_.now() + kPatience;
    while (!done()) {
      if (executor_.now() > deadline) return false;
      executor_.sleep_for(20ms);
    }
    return true;
  }

  // All jobs train with `members` in all and no leader waits for anybody.
  bool all_train(int members) {
    int training = 0;
    for (const LoadJob& job : jobs_) {
      const auto view = coordinator_->view(job.uid);
      if (view && view->phase == coordinator::Phase::kTraining && !view->taking_over)
        training += static_cast<int>(view->members.size());
    }
    return training == members;
  }
  std::uint64_t generations() {
    std::uint64_t sum = 0;
    for (const LoadJob& job : jobs_) sum += coordinator_->view(job.uid)->generation;
    return sum;
  }

  bool measure(int port, int ask, int answer) {
    const int members = jobs_[0].agents * static_cast<int>(jobs_.size());
    Gauge& connected = metrics_.gauge("rubato_coordinator_agents", "Agents connected now.");
    MonoTime began = executor_.now();
    lead(port, 1);
    if (!until([&] { return all_train(members); })) return fail("not all began to train");
    std::printf("%d agents, %zu jobs: all train %.1f s after the start\n", members, jobs_.size(),
                seconds(executor_.now() - began));
    executor_.sleep_for(3s);
    const double cpu = cpu_seconds();
    const double cpu_of_agents = cpu_seconds_of(agents_);
    executor_.sleep_for(kRest);
    std::printf("at rest: %.2f cores, %.0f MiB resident; the agents %.2f cores\n",
                (cpu_seconds() - cpu) / seconds(kRest), resident_mib(),
                (cpu_seconds_of(agents_) - cpu_of_agents) / seconds(kRest));
    const std::uint64_t before = generations();
    coordinator_.reset();
    executor_.sleep_for(500ms);
    const double spent = cpu_seconds();
    const double spent_by_agents = cpu_seconds_of(agents_);
    began = executor_.now();
    lead(port, 2);
    if (!until([&] { return connected.value() >= members; })) return fail("not all came back");
    const double back = seconds(executor_.now() - began);
    const double for_them = cpu_seconds() - spent;
    const double by_them = cpu_seconds_of(agents_) - spent_by_agents;
    if (!until([&] { return all_train(members); })) return fail("not all train after it");
    const bool nobody_was_lost = generations() == before;
    std::printf(
        "fail-over: all are back %.1f s after the lease (%.1f s of our CPU, %.1f s of "
        "theirs), all jobs stand %.1f s after it, %s\n",
        back, for_them, by_them, seconds(executor_.now() - began),
        nobody_was_lost ? "nobody was called lost" : "SOMEBODY WAS CALLED LOST");
    executor_.sleep_for(2s);
    if (::write(ask, "x", 1) != 1) return fail("the agents are gone");
    char line[512];
    const ssize_t got = ::read(answer, line, sizeof line - 1);
    if (got <= 0) return fail("the agents are gone");
    line[got] = 0;
    std::printf("%s", line);
    if (!until([&] { return all_train(members - 1); })) return fail("it did not go on");
    return nobody_was_lost;
  }

  bool fail(const char* why) {
    std::printf("%s\n", why);
    for (const LoadJob& job : jobs_)
      if (const auto view = coordinator_->view(job.uid))
        std::printf("  %s, %zu members, %zu heard, %zu ready: %s\n", name_of(view->phase),
                    view->members.size(), view->heard_pods.size(), view->ready_pods.size(),
                    view->reason.c_str());
    return false;
  }

  ThreadExecutor executor_;
  Metrics metrics_;
  kube::MemoryServer server_;
  kube::MemoryClient client_;
  net::KeyPair authority_;
  pid_t agents_ = 0;  // their process
  std::vector<LoadJob> jobs_;
  std::unique_ptr<net::TlsNetwork> network_;
  std::unique_ptr<coordinator::Coordinator> coordinator_;
};

}  // namespace
}  // namespace rubato::bench

int main(int argc, char** argv) {
  using namespace rubato;
  configure_log({.level = LogLevel::kError, .json = false});
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  const int agents = argc > 1 ? std::atoi(argv[1]) : 10'000;
  const int jobs = argc > 2 ? std::atoi(argv[2]) : 10;
  bench::Load load(agents, std::max(1, jobs));
  return load.run() ? 0 : 1;
}
