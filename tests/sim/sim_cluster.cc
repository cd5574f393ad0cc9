#include "tests/sim/sim_cluster.h"

#include "common/log.h"
#include "common/net/certificates.h"
#include "operator/api/crd.h"
#include "operator/api/resources.h"
#include "tests/sim/model_host.h"
#include "worker/agent/agent.h"

#include <algorithm>

#include <fmt/core.h>

namespace rubato::sim {
namespace {

constexpr const char* kMaster = "master";
const kube::Key kJob{"default", "gpt"};

json::Value manifest(const SimOptions& options) {
  json::Value pod = json::Value::object(
      {{"containers",
        json::Value::array({json::Value::object({{"name", "worker"}, {"image", "model"}})})}});
  return json::Value::object(
      {{"apiVersion", "rubato.dev/v1alpha1"},
       {"kind", "TrainingJob"},
       {"metadata", json::Value::object({{"name", kJob.name}, {"namespace", kJob.ns}})},
       {"spec", json::Value::object(
                    {{"gpus", json::Value::object({{"min", options.min_workers}, {"max", 8}})},
                     {"runtime", "command"},
                     {"template", json::Value::object({{"spec", std::move(pod)}})}})}});
}

}  // namespace

// Errors of the API server, before and after the effect; and the witness of every write.
struct SimCluster::Faults : kube::FaultHook {
  explicit Faults(SimCluster& given) : cluster(given) {}
  std::optional<Error> before(const kube::Operation&) override {
    // Mostly some milliseconds; now and then a server that has other things to do.
    const std::uint64_t slowest = rng.chance(0.15) ? 600'000'000 : 8'000'000;
    operator_executor->sleep_for(Duration(static_cast<std::int64_t>(rng.below(slowest))));
    if (rng.chance(failing)) return Error(Code::kUnavailable, "the server does not answer");
    return std::nullopt;
  }
  std::optional<Error> after(const kube::Operation& operation) override {
    if (operation.verb == kube::Verb::kPatch) look();
    if (rng.chance(failing)) return Error(Code::kTimeout, "the answer was lost");
    return std::nullopt;
  }
  void look() {
    const auto job = cluster.server_->get(api::kTrainingJob, kJob);
    if (!job.ok()) return;
    const json::Value& record = (*job)["status"]["membership"];
    if (record.is_null()) return;
    std::set<WorkerTuple> members;
    for (const json::Value& m : record["members"].items())
      members.emplace(m["podUID"].string_or(""), static_cast<std::uint32_t>(m["slot"].int_or(0)),
                      static_cast<std::uint64_t>(m["incarnation"].int_or(0)));
    cluster.world_.record_written(static_cast<std::uint64_t>(record["generation"].int_or(0)),
                                  static_cast<std::uint64_t>(record["leader"].int_or(0)), members);
  }
  SimCluster& cluster;
  Executor* operator_executor = nullptr;
  Rng rng{1};
  double failing = 0;
};

struct SimCluster::Operator {
  testing::SimProcess* process = nullptr;
  std::unique_ptr<net::Network> network;
  std::unique_ptr<kube::MemoryClient> client;
  coordinator::Coordinator* coordinator = nullptr;  // lives and dies with the process
  std::string host;
};

SimCluster::SimCluster(SimOptions options)
    : options_(options),
      executor_(options.seed),
      network_(executor_, options.seed + 1),
      world_(executor_, options.micro_batches, options.redo_every),
      server_process_(executor_.process("apiserver")),
      faults_(std::make_unique<Faults>(*this)) {
  kube::ServerOptions server_options;
  server_options.seed = options.seed;
  server_ = std::make_unique<kube::MemoryServer>(server_process_.clock(), server_options);
  faults_->rng = Rng(options.seed).fork(7);
  // Every third job lives on a slow network.
  network_.set_link({100us, options.seed % 3 == 0 ? Duration(40ms) : Duration(1ms)});
}

SimCluster::~SimCluster() {
  for (auto& pod : pods_)
    if (pod->process != nullptr) pod->process->crash();
  if (operator_) operator_->process->crash();
}

void SimCluster::say(const std::string& what) {
  if (!options_.verbose) return;
  fmt::print("{:9.3f}  {}\n",
             std::chrono::duration<double>(executor_.now().time_since_epoch()).count(), what);
}

void SimCluster::start() {
  for (const api::Kind& kind : api::kinds())
    CHECK(server_->create(kube::types::kCustomResourceDefinition, "", api::crd(kind)).ok());
  const auto made = server_->create(api::kTrainingJob, kJob.ns, manifest(options_));
  if (!made.ok()) check_failed(__FILE__, __LINE__, made.error().message);
  job_uid_ = kube::uid_of(server_->get(api::kTrainingJob, kJob).value());
  start_coordinator();
  for (int i = 0; i < options_.pods; ++i) add_pod();
  wish();
}

// ---- Operator
// ---------------------------------------------------------------------------------------

void SimCluster::start_coordinator() {
  ++epoch_;
  auto next = std::make_unique<Operator>();
  next->host = epoch_ % 2 == 1 ? "op-a" : "op-b";
  next->process = &executor_.process(fmt::format("operator-{}", epoch_));
  next->network = network_.attach(*next->process, next->host);
  next->client =
      std::make_unique<kube::MemoryClient>(*server_, *next->process, faults_.get(), epoch_);
  faults_->operator_executor = next->process;
  next->process->on_crash([client = next->client.get()] { client->disconnect(); });
  coordinator::Timing timing;
  timing.progress_floor = 5s;
  net::TlsConfig tls;
  tls.certificate = tls.private_key = "model";
  next->coordinator = new coordinator::Coordinator({.executor = *next->process,
                                                    .network = *next->network,
                                                    .client = *next->client,
                                                    .metrics = metrics_,
                                                    .master_key = kMaster,
                                                    .tls = tls,
                                                    .listen = {next->host, 7000},
                                                    .leader_address = [] { return ""; },
                                                    .timing = timing});
  operator_ = std::move(next);
  const Status started = operator_->coordinator->start();
  if (!started.ok()) check_failed(__FILE__, __LINE__, started.error().to_string());
  operator_->coordinator->lead(epoch_);
  say(fmt::format("coordinator {} leads", epoch_));
}

void SimCluster::crash_coordinator() {
  if (!operator_) return;
  say("the coordinator dies");
  operator_->process->crash();
  buried_.push_back(std::move(operator_));
}

void SimCluster::wish() {
  if (!operator_) return;
  coordinator::Wish wish;
  wish.job = kJob;
  wish.uid = job_uid_;
  wish.training = R"({"checkpoint":{"path":"/ckpt"}})";
  wish.micro_batches = options_.micro_batches;
  wish.min_workers = options_.min_workers;
  wish.start_workers = options_.min_workers;
  wish.stop = stop_;
  wish.stop_reason = "stopped by the test";
  for (const auto& pod : pods_)
    if (pod->wanted)
      wish.pods.push_back({pod->name, pod->uid, pod->host, "cpu", options_.slots, pod->leaving});
  operator_->coordinator->ensure(wish);
}

std::optional<coordinator::View> SimCluster::view() const {
  return operator_ ? operator_->coordinator->view(job_uid_) : std::nullopt;
}

// ---- Pods
// -------------------------------------------------------------------------------------------------

SimCluster::Pod& SimCluster::add_pod() {
  auto pod = std::make_unique<Pod>();
  const int number = pod_count_++;
  pod->name = fmt::format("gpt-{}", number);
  pod->uid = fmt::format("uid-{}", number);
  pod->host = fmt::format("n{}", number);
  pod->process = &executor_.process(pod->name);
  pod->network = network_.attach(*pod->process, pod->host);
  Pod* p = pod.get();
  pod->process->on_crash([this, p] {
    p->gone = true;
    world_.host_is_gone(p->uid);
  });
  worker::AgentConfig config;
  config.job = to_string(kJob);
  config.job_uid = job_uid_;
  config.pod_name = pod->name;
  config.pod_uid = pod->uid;
  config.node = pod->host;
  config.token = net::hmac_sha256_hex(kMaster, job_uid_);
  config.slots = options_.slots;
  config.coordinators = {{"op-a", 7000}, {"op-b", 7000}};
  config.tls.authority = "model";
  config.tls.peer_name = "rubato-operator";
  config.grace = 10s;
  config.seed = options_.seed * 1000 + static_cast<std::uint64_t>(number);
  // Owned by the process: when it crashes they stay as a dead process's memory does.
  auto body = [this, p, config](std::stop_token) {
    ModelHost host(*p->process, world_, p->uid, p->host, options_.steps);
    worker::Agent agent(*p->process, *p->network, host, config);
    p->agent = &agent;
    p->workers = &host;
    const int status = agent.run();
    p->agent = nullptr;
    p->workers = nullptr;
    p->gone = true;
    world_.host_is_gone(p->uid);
    say(fmt::format("{} exits with status {}", p->name, status));
  };
  (void)new Task(pod->process->spawn("agent", std::move(body)));
  say(fmt::format("{} on {} starts", pod->name, pod->host));
  pods_.push_back(std::move(pod));
  return *p;
}

void SimCluster::crash_pod(Pod& pod) {
  say(fmt::format("{} dies", pod.name));
  pod.agent = nullptr;
  pod.workers = nullptr;
  pod.process->crash();
}

void SimCluster::stop_wanting(Pod& pod) {
  pod.wanted = false;
  wish();
}

int SimCluster::running() const {
  return static_cast<int>(std::count_if(pods_.begin(), pods_.end(), [](const auto& pod) {
    return pod->wanted && !pod->gone && !pod->leaving;
  }));
}

// The controller's part: what is gone is not wanted, and something else is put in its place.
void SimCluster::controller_pass() {
  for (auto& pod : pods_) {
    if (!pod->wanted || !pod->gone) continue;
    pod->wanted = false;
    say(fmt::format("{} is gone", pod->name));
  }
  const bool over = view() && (view()->phase == coordinator::Phase::kFinished || stop_);
  while (running() < options_.pods && !over) add_pod();
  wish();
}

// ---- The story
// ----------------------------------------------------------------------------------------------

bool SimCluster::run_until(const std::function<bool()>& done, Duration limit) {
  return executor_.run_until([&] { return world_.violation().has_value() || done(); }, limit) &&
         !world_.violation();
}

void SimCluster::draw_fault(Rng& rng) {
  std::vector<Pod*> up;
  for (auto& pod : pods_)
    if (pod->wanted && !pod->gone && !pod->process->frozen()) up.push_back(pod.get());
  if (up.empty()) return;
  Pod* pod = up[rng.below(up.size())];
  const Duration spell = 200ms + Duration(static_cast<std::int64_t>(rng.below(6'000'000'000)));
  switch (rng.below(10)) {
    case 0:
      return crash_pod(*pod);
    case 1:
      say(fmt::format("{} is cut off for {:.1f} s", pod->host,
                      std::chrono::duration<double>(spell).count()));
      network_.cut(pod->host);
      world_.set_cut(pod->host, true);
      return executor_.at(executor_.now() + spell, [this, pod] {
        say(pod->host + " is healed");
        network_.heal(pod->host);
        world_.set_cut(pod->host, false);
      });
    case 2:
      say(fmt::format("{} freezes for {:.1f} s", pod->name,
                      std::chrono::duration<double>(spell).count()));
      pod->process->freeze();
      return executor_.at(executor_.now() + spell, [this, pod] {
        if (pod->process->crashed()) return;
        say(pod->name + " thaws");
        pod->process->thaw();
      });
    case 3:
    case 4:
      if (pod->workers == nullptr) return;
      say(fmt::format("worker of {} is killed", pod->name));
      return pod->workers->kill(0);
    case 5:
      if (!operator_) return;
      crash_coordinator();
      return executor_.at(executor_.now() + spell / 2, [this] {
        start_coordinator();
        wish();
      });
    case 6:
      say("the API server fails for a while");
      faults_->failing = 0.4;
      return executor_.at(executor_.now() + spell / 3, [this] {
        faults_->failing = 0;
        say("the API server answers again");
      });
    case 7:
      if (pod->agent == nullptr) return;
      say(fmt::format("{} is told to end", pod->name));
      return pod->agent->terminate();
    case 8:
      say(fmt::format("{} is to leave", pod->name));
      pod->leaving = true;
      return wish();
    case 9:
      say(fmt::format("connections of {} are reset", pod->host));
      return network_.reset_connections(pod->host);
    default:
      return;
  }
}

SimResult SimCluster::run() {
  SimResult result;
  if (options_.verbose) {
    set_log_sink([this](LogLevel, std::string_view component, std::string_view text) {
      say(fmt::format("  [{}] {}", component, text));
    });
  } else {
    set_log_sink([](LogLevel, std::string_view, std::string_view) {});
  }
  start();
  Rng rng = Rng(options_.seed).fork(99);
  const MonoTime begin = executor_.now();
  for (Duration at = 1s; at < options_.trouble + 600s; at += 700ms)
    executor_.at(begin + at, [this] { controller_pass(); });
  for (int i = 0; i < options_.faults; ++i) {
    const auto when = 2s + Duration(static_cast<std::int64_t>(
                               rng.below(static_cast<std::uint64_t>(options_.trouble.count()))));
    auto draw = std::make_shared<Rng>(rng.fork(static_cast<std::uint64_t>(i)));
    executor_.at(begin + when, [this, draw] { draw_fault(*draw); });
  }
  const auto finished = [&] {
    return view() && view()->phase == coordinator::Phase::kFinished &&
           world_.highest_step() == options_.steps;
  };
  const auto fail = [&](const std::string& what) {
    result.what = world_.violation() ? *world_.violation() : what;
    if (result.what == what && view())
      result.what += fmt::format(" ({}: {}; step {}, generation {})", name_of(view()->phase),
                                 view()->reason, view()->step, view()->generation);
  };
  run_until(finished, options_.trouble + 10s);
  const MonoTime quiet = executor_.now();
  if (!world_.violation() && !finished() &&
      !run_until([&] { return finished() || world_.last_progress() > quiet; },
                 options_.progress_limit))
    fail("no step is committed though all is quiet");
  else if (!run_until(finished, options_.finish_limit))
    fail("the job does not finish though all is quiet");
  else if (world_.violation())
    fail("");
  else
    result.ok = true;
  if (view()) result.changes = view()->changes;
  result.virtual_seconds = std::chrono::duration<double>(executor_.now() - begin).count();
  result.generations = world_.generations();
  result.decisions = world_.decisions();
  result.digest = executor_.digest();
  set_log_sink({});
  return result;
}

}  // namespace rubato::sim
