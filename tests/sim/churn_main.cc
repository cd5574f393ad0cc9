// sim_churn: jobs come and go for a long time while nodes lose their power, in virtual time, and
// what the operators hold in memory is counted: who keeps something of each job grows. All else
// (the API server, nodes, workers, and the simulation's own notes) is counted apart, and not
// judged: it grows by some 30 KiB a job, of which it is not known who holds them.
//   sim_churn [--jobs 10000] [--seed 1]
// Prints a table, a line for each tenth. Ends with 1 when leader or standby hold 5 % more in the
// second half than in the first, the first tenth left out: caches fill in it.
#include "common/log.h"
#include "operator/api/resources.h"
#include "tests/sim/whole_cluster.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <new>

#include <fmt/core.h>

namespace rubato::sim {
namespace {

enum class Owner : std::uint32_t { kOther, kFirst, kSecond };
// Bytes that are allocated, by whose task has asked for them. An object that the API server keeps
// counts for who has written it; it goes with the job.
std::array<std::int64_t, 3> held_by{};
const WholeCluster* cluster_now = nullptr;

Owner owner_now() {
  if (cluster_now == nullptr) return Owner::kOther;
  const std::string_view name = cluster_now->running();
  if (name.starts_with("op-a-")) return Owner::kFirst;
  if (name.starts_with("op-b-")) return Owner::kSecond;
  return Owner::kOther;
}

struct alignas(std::max_align_t) Header {
  std::size_t size = 0;
  Owner owner = Owner::kOther;
};

}  // namespace

void* counted_new(std::size_t size) {
  auto* header = static_cast<Header*>(std::malloc(sizeof(Header) + size));
  if (header == nullptr) std::abort();
  *header = {size, owner_now()};
  held_by[static_cast<std::size_t>(header->owner)] += static_cast<std::int64_t>(size);
  return header + 1;
}

void counted_delete(void* memory) {
  if (memory == nullptr) return;
  auto* header = static_cast<Header*>(memory) - 1;
  held_by[static_cast<std::size_t>(header->owner)] -= static_cast<std::int64_t>(header->size);
  std::free(header);
}

namespace {

constexpr int kAtOnce = 12;
constexpr int kNodes = 8;
constexpr int kJobsPerLoss = 20;    // a node loses its power
constexpr int kServerHistory = 48;  // changes of a kind
constexpr double kMostGrowth = 0.05;
constexpr Duration kGlance = 500ms;
constexpr Duration kRest = 90min;
constexpr auto kJobLimit = 30min;

JobPlan plan_of(int number) {
  JobPlan plan;
  plan.shape = {.name = fmt::format("churn-{}", number),
                .micro_batches = 4,
                .steps = 6,
                .checkpoint_every = 3};
  plan.max = 1 + number % 3;
  return plan;
}

Scenario ground(std::uint64_t seed) {
  Scenario scenario;
  scenario.seed = seed;
  for (int i = 0; i < kNodes; ++i)
    scenario.nodes.push_back({.name = fmt::format("n{}", i), .gpu_type = "A100"});
  scenario.lease = kube::LeaseTiming{};
  return scenario;
}

struct Sample {
  int jobs = 0;
  double hours = 0;
  std::int64_t leader = 0;
  std::int64_t standby = 0;
  std::int64_t others = 0;
};

class Churn {
 public:
  Churn(std::uint64_t seed, int jobs) : cluster_(ground(seed)), jobs_(jobs) {
    cluster_now = &cluster_;
  }
  ~Churn() { cluster_now = nullptr; }

  int run() {
    cluster_.start();
    fmt::print("{:>8} {:>10} {:>14} {:>14} {:>14}\n", "jobs", "hours", "leader, KiB",
               "standby, KiB", "all else, KiB");
    while (gone_ < jobs_) {
      while (static_cast<int>(present_.size()) < kAtOnce && begun_ < next_stop())
        cluster_.submit(plan_of(begin_one()));
      if (!cluster_.run_until([&] { return one_is_over(); }, kJobLimit)) return give_up();
      if (present_.empty() && begun_ == next_stop()) take_sample();
    }
    return verdict();
  }

 private:
  // All jobs of a tenth are over before the next begins: what is held then is held of none.
  int next_stop() const {
    return static_cast<int>((static_cast<long>(samples_.size()) + 1) * jobs_ / 10);
  }

  int begin_one() {
    const int number = begun_++;
    present_.push_back(number);
    if (number % kJobsPerLoss == kJobsPerLoss - 1)
      cluster_.inject(
          {.kind = FaultKind::kPowerCut, .spell = 20s, .pick = static_cast<std::uint64_t>(number)});
    return number;
  }

  // Every job that is complete is deleted; true when one has left nothing.
  bool one_is_over() {
    const MonoTime now = cluster_.now();
    if (now < look_again_) return false;
    look_again_ = now + kGlance;
    const std::size_t before = present_.size();
    std::erase_if(present_, [&](int number) {
      const kube::Key key{"default", plan_of(number).shape.name};
      const auto job = cluster_.server().get(api::kTrainingJob, key);
      if (!job.ok()) return cluster_.forget(key.name);
      const std::string_view state = (*job)["status"]["state"].string_view_or("");
      if (state == "Complete" && (*job)["metadata"]["deletionTimestamp"].is_null())
        (void)cluster_.server().remove(api::kTrainingJob, key);
      return false;
    });
    gone_ += static_cast<int>(before - present_.size());
    return present_.size() != before;
  }

  // After a while of rest, in which events and what is remembered of them expire.
  void take_sample() {
    cluster_.run_until([] { return false; }, kRest);
    renew_server();
    const Replica* leader = cluster_.leader();
    const bool first_leads = leader != nullptr && leader->host() == "op-a";
    const double hours = std::chrono::duration<double>(cluster_.now() - began_).count() / 3600;
    samples_.push_back(
        {gone_, hours, held_by[first_leads ? 1 : 2], held_by[first_leads ? 2 : 1], held_by[0]});
    const Sample& s = samples_.back();
    fmt::print("{:>8} {:>10.1f} {:>14.1f} {:>14.1f} {:>14.1f}\n", s.jobs, s.hours,
               static_cast<double>(s.leader) / 1024, static_cast<double>(s.standby) / 1024,
               static_cast<double>(s.others) / 1024);
    std::fflush(stdout);
  }

  // The server looks for expired events when one is made, and keeps the last changes of a kind for
  // watches: of pods of nobody, then.
  void renew_server() {
    const auto event = json::parse(R"({"apiVersion":"events.k8s.io/v1","kind":"Event",
      "metadata":{"name":"rest","namespace":"default"},"eventTime":"2026-01-01T00:00:00.000000Z",
      "reportingController":"rubato.dev/churn","reportingInstance":"churn","action":"Rest",
      "reason":"Rest","type":"Normal","note":"n","regarding":{"kind":"Node","name":"n0"}})");
    CHECK(cluster_.server().create(kube::types::kEvent, "default", event.value()).ok());
    const auto pod = json::parse(R"({"apiVersion":"v1","kind":"Pod",
      "metadata":{"name":"rest","namespace":"default"},
      "spec":{"schedulerName":"nobody","containers":[{"name":"c","image":"i"}]}})");
    for (int i = 0; i < kServerHistory; ++i) {
      CHECK(cluster_.server().create(kube::types::kPod, "default", pod.value()).ok());
      (void)cluster_.server().remove(kube::types::kPod, {"default", "rest"},
                                     {.grace_period_seconds = 0});
    }
    cluster_.run_until([] { return false; }, kGlance);
  }

  int give_up() {
    if (const auto& broken = cluster_.violation()) fmt::print("{}\n", *broken);
    fmt::print("no job ended within {} minutes; {} of {} were over\n", kJobLimit.count(), gone_,
               jobs_);
    return 1;
  }

  // Chance adds to what is held, and never takes away: the least of either half is compared.
  int verdict() const {
    const auto least = [&](std::size_t from, std::size_t to, std::int64_t Sample::* of) {
      std::int64_t found = samples_[from].*of;
      for (std::size_t i = from; i < to; ++i) found = std::min(found, samples_[i].*of);
      return static_cast<double>(found);
    };
    const std::size_t half = samples_.size() / 2;
    const auto growth = [&](std::int64_t Sample::* of) {
      return least(half, samples_.size(), of) / least(1, half, of) - 1;
    };
    const double leader = growth(&Sample::leader);
    const double standby = growth(&Sample::standby);
    const double others = growth(&Sample::others);
    fmt::print(
        "from the first half to the second: leader {:+.1f} %, standby {:+.1f} % (at most {:+.0f} "
        "%), all else {:+.1f} %\n",
        100 * leader, 100 * standby, 100 * kMostGrowth, 100 * others);
    return std::max(leader, standby) > kMostGrowth ? 1 : 0;
  }

  WholeCluster cluster_;
  const int jobs_;
  const MonoTime began_ = cluster_.now();
  MonoTime look_again_{};
  int begun_ = 0;
  int gone_ = 0;
  std::deque<int> present_;  // numbers of jobs that have left something
  std::vector<Sample> samples_;
};

int churn_main(int argc, char** argv) {
  int jobs = 10'000;
  std::uint64_t seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view word = argv[i];
    if (word == "--jobs")
      jobs = std::max(10, std::atoi(argv[i + 1]));
    else if (word == "--seed")
      seed = std::strtoull(argv[i + 1], nullptr, 10);
    else
      return fmt::print(stderr, "usage: sim_churn [--jobs 10000] [--seed 1]\n"), 2;
  }
  configure_log({.level = LogLevel::kError});
  return Churn(seed, jobs).run();
}

}  // namespace
}  // namespace rubato::sim

void* operator new(std::size_t size) { return rubato::sim::counted_new(size); }
void operator delete(void* memory) noexcept { rubato::sim::counted_delete(memory); }
void operator delete(void* memory, std::size_t) noexcept { rubato::sim::counted_delete(memory); }

int main(int argc, char** argv) { return rubato::sim::churn_main(argc, argv); }
