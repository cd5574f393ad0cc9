#include "tests/integration/coordinator/job_processes.h"

#include "common/net/certificates.h"
#include "operator/api/crd.h"
#include "operator/api/resources.h"
#include "worker/data/token_file.h"

#include <csignal>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato::coordinator {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMaster = "master key of a test";
const kube::Key kJob{"default", "gpt"};

void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

void write_tokens(const fs::path& path) {
  PosixFileSystem files;
  auto writer = worker::TokenFileWriter::create(files, path.string(), 256);
  CHECK(writer.ok());
  std::vector<std::int32_t> tokens;
  for (std::uint64_t i = 0, state = 7; i < 60000; ++i) {
    state = mix64(state);
    tokens.push_back('a' + static_cast<std::int32_t>(state % 7 + i % 11));
  }
  CHECK(writer->append(tokens).ok());
  CHECK(writer->finish().ok());
}

}  // namespace

JobProcesses::JobProcesses(const JobOptions& options)
    : options_(options),
      network_(executor_),
      server_(executor_.clock()),
      client_(server_, executor_),
      port_{options.nodes != nullptr ? options.nodes->hub() : "127.0.0.1", 0} {
  std::string pattern = (fs::temp_directory_path() / "rubato-whole-XXXXXX").string();
  folder_ = ::mkdtemp(pattern.data());
  for (const api::Kind& kind : api::kinds())
    CHECK(server_.create(kube::types::kCustomResourceDefinition, "", api::crd(kind)).ok());
  const auto made = json::parse(R"({"apiVersion":"rubato.dev/v1alpha1","kind":"TrainingJob",
    "metadata":{"name":"gpt","namespace":"default"},"spec":{"runtime":"command",
    "gpus":{"min":1,"max":8},
    "template":{"spec":{"containers":[{"name":"worker","image":"none"}]}}}})");
  CHECK(server_.create(api::kTrainingJob, kJob.ns, made.value()).ok());
  job_uid_ = kube::uid_of(server_.get(api::kTrainingJob, kJob).value());

  const WallTime now = executor_.clock().wall();
  const auto authority = net::make_authority("rubato test", now - 1h, now + 24h);
  CHECK(authority.ok());
  net::CertificateRequest ours;
  ours.common_name = "rubato-operator";
  ours.dns_names = {"rubato-operator"};
  ours.not_before = now - 1h;
  ours.not_after = now + 24h;
  const auto server = net::issue_certificate(*authority, ours);
  CHECK(server.ok());
  tls_.certificate = server->certificate;
  tls_.private_key = server->private_key;
  tls_.authority = authority->certificate;
  tls_.require_peer_certificate = true;
  authority_ = *authority;
  net::CertificateRequest theirs = ours;
  theirs.common_name = job_uid_;
  theirs.dns_names = {job_uid_};
  const auto worker = net::issue_certificate(*authority, theirs);
  CHECK(worker.ok());
  fs::create_directories(folder_ / "secret");
  write(folder_ / "secret/token", net::hmac_sha256_hex(kMaster, job_uid_));
  write(folder_ / "secret/ca.crt", authority->certificate);
  write(folder_ / "secret/tls.crt", worker->certificate);
  write(folder_ / "secret/tls.key", worker->private_key);
  write_tokens(folder_ / "tokens.bin");
  training_ = fmt::format(
      R"({{"model":{{"family":"gpt2","layers":{},"hidden":{},"heads":2,"vocab":256}},)"
      R"("data":{{"path":"{}/tokens.bin","validationFraction":{}}},)"
      R"("batch":{{"global":{},"micro":{},"sequenceLength":{}}},)"
      R"("optimizer":{{"name":"adamw","learningRate":0.003,"schedule":{{"warmupSteps":5}}}},)"
      R"("stop":{{"steps":{}}},"seed":42,"evaluateEvery":{},"reduce":"exact",)"
      R"("checkpoint":{{"every":{},"path":"{}/ckpt","keep":3}}}})",
      options.layers, options.hidden, folder_.string(), options.validation,
      options.micro_batches * static_cast<std::uint32_t>(options.micro), options.micro,
      options.length, options.steps, options.evaluate_every, options.checkpoint_every,
      options.disks > 0 ? "/proc/self/cwd" : folder_.string());  // home() differs between pods
  fs::create_directories(folder_ / "ckpt");
  if (options.disks > 0) open_disks();
}

JobProcesses::~JobProcesses() {
  for (auto& pod : pods)
    if (pod->pid > 0) kill_pod(*pod);
  coordinator_.reset();
  disks_.reset();
  std::error_code ignored;
  if (!keeps_files_) fs::remove_all(folder_, ignored);
}

fs::path JobProcesses::home(int pod) const {
  return options_.disks > 0 ? folder_ / "nodes" / std::to_string(pod % options_.disks) : folder_;
}

// The ledger is the test's own: no fault of a disk reaches it.
void JobProcesses::open_disks() {
  fs::create_directories(folder_ / "ledger");
  fs::create_directory_symlink(folder_ / "ledger", folder_ / "ckpt/ledger");
  std::vector<fs::path> views;
  for (int node = 0; node < options_.disks; ++node) views.push_back(home(node) / "ckpt");
  auto opened = NodeDisks::open(folder_ / "ckpt", views);
  if (!opened.ok()) throw std::runtime_error(opened.error().to_string());
  disks_ = std::move(opened).value();
}

void JobProcesses::lead(std::uint64_t epoch) {
  // The port of the one before is free once its I/O thread has closed it.
  const bool started = wait([&] {
    coordinator_ = std::make_unique<Coordinator>(Dependencies{.executor = executor_,
                                                              .network = network_,
                                                              .client = client_,
                                                              .metrics = metrics_,
                                                              .credentials = {kMaster, tls_},
                                                              .listen = port_,
                                                              .leader_address = [] { return ""; },
                                                              .timing = options_.timing});
    return coordinator_->start().ok();
  });
  CHECK(started);
  port_ = coordinator_->local();
  coordinator_->lead(epoch);
  wish(stop_);
}

std::string JobProcesses::token() const { return net::hmac_sha256_hex(kMaster, job_uid_); }

void JobProcesses::stop_leading() { coordinator_.reset(); }

JobProcesses::Pod& JobProcesses::start_pod() { return start_pod(""); }

JobProcesses::Pod& JobProcesses::promise_pod() {
  Pod& pod = add_pod();
  wish(stop_);
  return pod;
}

JobProcesses::Pod& JobProcesses::add_pod() {
  auto pod = std::make_unique<Pod>();
  const auto number = pods.size();
  pod->number = static_cast<int>(number);
  pod->name = fmt::format("gpt-{}", number);
  pod->uid = fmt::format("00000000-0000-0000-0000-{:012}", number);
  pod->log = (folder_ / (pod->name + ".log")).string();
  pod->fault_file = (folder_ / ("fault-" + std::to_string(number))).string();
  pods.push_back(std::move(pod));
  return *pods.back();
}

JobProcesses::Pod& JobProcesses::start_pod(const std::string& fault) {
  Pod* const pod = &add_pod();
  if (!fault.empty()) plan_fault(*pod, fault);
  const std::string faults = pod->fault_file + ":" + (folder_ / "pace").string();
  const int node = options_.nodes != nullptr ? pod->number % options_.nodes->size() : 0;
  const std::string address =
      options_.nodes != nullptr ? options_.nodes->address(node) : "127.0.0.1";
  std::vector<std::string> variables{"RUBATO_JOB=default/gpt",
                                     "RUBATO_JOB_UID=" + job_uid_,
                                     "RUBATO_POD_NAME=" + pod->name,
                                     "RUBATO_POD_UID=" + pod->uid,
                                     "RUBATO_NODE=n" + std::to_string(pod->number),
                                     "RUBATO_POD_IP=" + address,
                                     "RUBATO_SLOTS=1",
                                     "RUBATO_COORDINATORS=" + net::to_string(port_),
                                     "RUBATO_SECRET_DIR=" + (folder_ / "secret").string(),
                                     std::string("RUBATO_WORKER=") + RUBATO_TESTING_WORKER,
                                     "RUBATO_FAULT_FILE=" + faults,
                                     options_.ledger ? "RUBATO_LEDGER=1" : "RUBATO_LEDGER=",
                                     "PATH=/usr/bin:/bin"};
  std::vector<char*> environment;
  for (std::string& v : variables) environment.push_back(v.data());
  environment.push_back(nullptr);
  std::string program = std::string(RUBATO_BIN) + "/rubato-agent";
  char* arguments[] = {program.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, pod->log.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                   0644);
  posix_spawn_file_actions_addopen(&actions, 2, (pod->log + ".err").c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_addchdir_np(&actions, home(pod->number).c_str());
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  // A child begins in the network of the thread that starts it.
  if (options_.nodes != nullptr) options_.nodes->enter(node);
  const int failed = ::posix_spawn(&pod->pid, program.c_str(), &actions, &attributes, arguments,
                                   environment.data());
  if (options_.nodes != nullptr) options_.nodes->enter_hub();
  CHECK_EQ(failed, 0);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  wish(stop_);
  return *pod;
}

void JobProcesses::wish(bool stop) {
  stop_ = stop;
  if (!coordinator_) return;
  Wish wish;
  wish.job = kJob;
  wish.uid = job_uid_;
  wish.training = training_;
  wish.micro_batches = options_.micro_batches;
  wish.min_workers = min_workers;
  wish.start_workers = start_workers;
  wish.stop = stop;
  wish.stop_reason = "the test says so";
  for (const auto& pod : pods)
    if (pod->wanted) wish.pods.push_back({pod->name, pod->uid, "n", "cpu", 1, pod->leaving});
  coordinator_->ensure(wish);
}

View JobProcesses::view() const {
  const auto view = coordinator_ ? coordinator_->view(job_uid_) : std::nullopt;
  return view.value_or(View{});
}

bool JobProcesses::wait(const std::function<bool()>& done, Duration limit) {
  const MonoTime deadline = executor_.now() + limit;
  while (!done()) {
    if (executor_.now() >= deadline) return false;
    executor_.sleep_for(5ms);
  }
  return true;
}

std::vector<pid_t> JobProcesses::workers(const Pod& pod) const {
  std::vector<pid_t> all;
  // A thread of the agent may be the parent: every task's children count. It may end meanwhile.
  std::error_code gone;
  fs::directory_iterator task(fmt::format("/proc/{}/task", pod.pid), gone);
  for (; !gone && task != fs::directory_iterator(); task.increment(gone)) {
    std::ifstream of_task(task->path() / "children");
    for (pid_t pid = 0; of_task >> pid;) all.push_back(pid);
  }
  return all;
}

void JobProcesses::signal_pod(const Pod& pod, int signal) const {
  if (pod.pid <= 0) return;
  // Each worker has a group of its own; the agent's was started by us, and not yet waited for.
  const std::vector<pid_t> of_workers = workers(pod);
  ::kill(-pod.pid, signal);
  for (const pid_t worker : of_workers) ::kill(-worker, signal);
}

void JobProcesses::kill_pod(Pod& pod) {
  signal_pod(pod, SIGKILL);
  (void)wait_exit(pod);
}

// Written aside and moved, so that nobody reads half a plan.
void JobProcesses::plan_fault(const Pod& pod, const std::string& fault) const {
  write(pod.fault_file + ".new", fault + "\n");
  fs::rename(pod.fault_file + ".new", pod.fault_file);
}

void JobProcesses::pace(std::chrono::milliseconds time) const {
  const fs::path file = folder_ / "pace";
  if (time.count() == 0) {
    fs::remove(file);
    return;
  }
  write(folder_ / "pace.new", fmt::format("compute:*:slow-{}\n", time.count()));
  fs::rename(folder_ / "pace.new", file);
}

int JobProcesses::wait_exit(Pod& pod, Duration limit) {
  if (pod.pid <= 0) return -1;
  int status = 0;
  const pid_t pid = pod.pid;
  if (!wait([&] { return ::waitpid(pid, &status, WNOHANG) == pid; }, limit)) return -1;
  pod.pid = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::map<std::uint64_t, std::string> JobProcesses::losses() const {
  std::map<std::uint64_t, std::string> found;
  for (const auto& pod : pods) {
    std::ifstream log(pod->log);
    for (std::string line; std::getline(log, line);) {
      std::uint64_t step = 0;
      char bits[64] = {};
      const auto at = line.find("step=");
      if (at == std::string::npos ||
          std::sscanf(line.c_str() + at, "step=%lu loss=%*s bits=%63s", &step, bits) != 2)
        continue;
      const auto [known, is_new] = found.try_emplace(step, bits);
      if (!is_new && known->second != bits) found[0] += fmt::format("step {} twice; ", step);
    }
  }
  return found;
}

}  // namespace rubato::coordinator
