// rubato-operator: watches TrainingJobs, schedules them, and coordinates their workers.
#include "common/executor.h"
#include "common/files.h"
#include "common/heaps.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/net/certificates.h"
#include "common/net/http_listener.h"
#include "common/net/tls_network.h"
#include "common/rng.h"
#include "common/stop_signals.h"
#include "common/version.h"
#include "kube/quantity.h"
#include "kube/rest_client.h"
#include "operator/control/leaving_nodes.h"
#include "operator/control/metrics_access.h"
#include "operator/control/operator.h"
#include "operator/control/snapshot_folder.h"

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <CLI/CLI.hpp>
#include <linux/close_range.h>
#include <sys/socket.h>
#include <unistd.h>

namespace rubato {
namespace {

constexpr int kLeaseLost = 3;  // exit status, where it cannot begin anew
constexpr auto kOwnCertificateLife = std::chrono::hours(24 * 90);
constexpr auto kOwnCertificateSkew = std::chrono::hours(1);
constexpr std::size_t kPemBytesMax = 1 << 20;   // of a certificate or key
constexpr double kCertificateHoursMin = 0.008;  // half a minute, for tests
constexpr double kCertificateHoursMost = 24 * 3650;
constexpr double kGangSecondsMin = 0.1;
constexpr double kWaitSecondsMost = 86400;  // as gangStartSeconds of a SchedulingPolicy
constexpr double kLeadSecondsMost = 7 * 86400;

struct Options {
  std::string kubeconfig;
  std::string ns = "rubato-system";
  std::string identity;
  std::string installation = control::Installation{}.name;
  std::vector<std::string> namespaces;
  std::string listen = "0.0.0.0:7443";
  std::string advertise;
  std::vector<std::string> coordinators;
  std::string probes;
  std::string metrics;
  std::string metrics_certificate;
  int worker_metrics_port = 0;
  std::string worker_runtime_class;
  std::string worker_shared_memory;
  std::string gpu_resource = "nvidia.com/gpu";
  std::vector<std::string> topology_levels = {"zone=topology.kubernetes.io/zone"};
  std::vector<std::string> leaving_taints = control::Config{}.leaving_taints;
  double maintenance_lead_seconds = 300;
  double lease_seconds = 15;
  double node_lease_seconds = 0;
  int watch_seconds = 30;
  double gang_seconds = 300;
  double stall_seconds = 20;
  double min_gain = 0.01;
  double certificate_hours = 24 * 90;
  std::string authority_secret;
  std::string snapshots;
  bool json_log = false;
  bool verbose = false;
};

// Where to listen. "[::]" is IPv4 too; where the kernel has no IPv6, it is IPv4 alone.
Result<net::Endpoint> parse_listen(const std::string& text) {
  TRY(net::Endpoint at, net::parse_endpoint(text));
  if (at.host != "::") return at;
  const int probe = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe >= 0) {
    ::close(probe);
  } else if (errno == EAFNOSUPPORT) {
    at.host = "0.0.0.0";
  }
  return at;
}

// An address for others to dial, with brackets where it needs some.
Result<std::string> parse_address(const std::string& text) {
  if (text.find("$(") != std::string::npos)  // as the kubelet leaves it
    return Error(Code::kInvalid,
                 "endpoint \"" + text +
                     "\": there is no such variable (yet)\n  What to do: nothing where the next "
                     "start has it; else set enableServiceLinks of the pod to true, or the "
                     "variable itself (chart: extraEnv)");
  TRY(const net::Endpoint endpoint, net::parse_endpoint(text));
  return to_string(endpoint);
}

Result<control::OperatorSettings> settings_of(const Options& options) {
  control::OperatorSettings settings;
  settings.ns = options.ns;
  settings.installation = {options.installation, options.namespaces};
  TRY_OK(settings.installation.check());
  settings.seed = random_seed();
  settings.identity = options.identity + "_" + net::random_hex(4);
  TRY(settings.coordinator_listen, parse_listen(options.listen));
  TRY(settings.coordinator_advertised,
      parse_address(options.advertise.empty() ? options.listen : options.advertise));
  settings.config.gpu_resource = options.gpu_resource;
  TRY(settings.config.topology, control::parse_topology_levels(options.topology_levels));
  TRY(settings.config.leaving_taints, control::parse_taint_keys(options.leaving_taints));
  for (const std::string& text : options.coordinators) {
    TRY(std::string address, parse_address(text));
    settings.config.coordinator_addresses.push_back(std::move(address));
  }
  if (settings.config.coordinator_addresses.empty()) {
    settings.config.coordinator_addresses = {settings.coordinator_advertised};
  }
  const auto seconds = [](double s) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
  };
  settings.config.min_gain = options.min_gain;
  settings.certificates.life = seconds(options.certificate_hours * 3600);
  settings.authority_secret = options.authority_secret;
  settings.config.worker_metrics_port = options.worker_metrics_port;
  settings.config.worker_runtime_class = options.worker_runtime_class;
  settings.config.worker_shared_memory = options.worker_shared_memory;
  if (!options.worker_shared_memory.empty()) {
    const auto size = kube::parse_quantity(options.worker_shared_memory);
    if (!size.ok()) return size.error().in("--worker-shared-memory");
  }
  settings.config.node_lease_limit = seconds(options.node_lease_seconds);
  settings.config.maintenance_lead = seconds(options.maintenance_lead_seconds);
  settings.config.gang_start = seconds(options.gang_seconds);
  settings.timing.progress_floor = seconds(options.stall_seconds);
  settings.lease.lease = seconds(options.lease_seconds);
  settings.lease.renew = seconds(options.lease_seconds * 2 / 3);
  settings.lease.retry = seconds(options.lease_seconds * 2 / 15);
  return settings;
}

net::HttpResponse metrics_of(control::Operator& replica) {
  return {.shared_body = replica.metrics_text(),
          .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

Result<std::string> read_file(const std::filesystem::path& path) {
  PosixFileSystem files;
  TRY(std::string text, read_text(files, path.string(), kPemBytesMax));
  if (text.empty()) return Error(Code::kNotFound, path.string() + " is empty");
  return text;
}

Result<net::KeyPair> self_signed(const std::string& name, WallTime now) {
  const WallTime from = now - kOwnCertificateSkew;
  const WallTime until = now + kOwnCertificateLife;
  TRY(const net::KeyPair authority, net::make_authority(name, from, until));
  return net::issue_certificate(
      authority,
      {.common_name = name, .dns_names = {name}, .not_before = from, .not_after = until});
}

// tls.crt and tls.key of a folder, as a mounted Secret has them, read again when it is replaced;
// without one, a pair of this process' own, which nobody can verify, made anew in good time.
std::function<Result<net::KeyPair>()> certificate_source(const Options& options, Clock& clock) {
  if (!options.metrics_certificate.empty())
    return [path = std::filesystem::path(options.metrics_certificate)]() -> Result<net::KeyPair> {
      net::KeyPair pair;
      TRY(pair.certificate, read_file(path / "tls.crt"));
      TRY(pair.private_key, read_file(path / "tls.key"));
      return pair;
    };
  return [name = options.identity, &clock, made = WallTime{},
          pair = net::KeyPair{}]() mutable -> Result<net::KeyPair> {
    const WallTime now = clock.wall();
    if (now - made < kOwnCertificateLife / 2) return pair;
    TRY(pair, self_signed(name, now));
    made = now;
    return pair;
  };
}

// /metrics over HTTPS, for accounts that may `get` it.
Result<std::unique_ptr<net::HttpListener>> serve_metrics(Executor& executor,
                                                         control::Operator& replica,
                                                         control::MetricsAccess& access,
                                                         const Options& options) {
  if (options.metrics.empty()) return std::unique_ptr<net::HttpListener>();
  TRY(const net::Endpoint endpoint, parse_listen(options.metrics));
  return net::HttpListener::start(
      executor, endpoint, {{"/metrics", [&replica] { return metrics_of(replica); }}},
      {.certificate = certificate_source(options, executor.clock()),
       .admit = [&access](const net::HttpRequest& request, net::HttpOptions::Decide done) {
         access.decide(request, std::move(done));
       }});
}

// /healthz (the Lease is not overdue), /readyz (the caches are full), and /metrics where it has no
// port of its own.
Result<std::unique_ptr<net::HttpListener>> serve_probes(Executor& executor,
                                                        control::Operator& replica,
                                                        const Options& options) {
  if (options.probes.empty()) return std::unique_ptr<net::HttpListener>();
  TRY(const net::Endpoint endpoint, parse_listen(options.probes));
  const auto yes_or_no = [](bool good) {
    return net::HttpResponse{.status = good ? 200 : 503, .body = good ? "ok\n" : "no\n"};
  };
  net::HttpListener::Handlers handlers = {
      {"/healthz", [&replica, yes_or_no] { return yes_or_no(replica.is_healthy()); }},
      {"/readyz", [&replica, yes_or_no] { return yes_or_no(replica.is_ready()); }}};
  if (options.metrics.empty()) handlers["/metrics"] = [&replica] { return metrics_of(replica); };
  return net::HttpListener::start(executor, endpoint, std::move(handlers));
}

// The same process begins anew, with nothing left of the life before: to end would cost it the
// kubelet's back-off, which doubles with each Lease that is lost.
[[noreturn]] void begin_anew(char** arguments) {
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (!error && ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) == 0)
    ::execv(program.c_str(), arguments);
  ::_exit(kLeaseLost);
}

Status run(const Options& options, char** arguments) {
  const StopSignals signals;
  ::signal(SIGPIPE, SIG_IGN);

  ThreadExecutor executor;
  Metrics metrics;
  TRY(control::OperatorSettings settings, settings_of(options));
  TRY(const kube::RestConfig config, kube::default_config({.path = options.kubeconfig}));
  settings.write_limit = settings.lease.lease / 3;
  kube::RestOptions rest{.watch_length = std::chrono::seconds(options.watch_seconds),
                         .user_agent = "rubato-operator (linux/amd64)"};
  kube::RestOptions lease_options = rest;
  rest.limits.write_timeout = settings.write_limit;
  TRY(const auto client, kube::RestClient::make(config, executor, metrics, rest));
  lease_options.limits.timeout =
      std::max(1s, std::chrono::duration_cast<std::chrono::seconds>(settings.lease.renew / 2));
  TRY(const auto lease_client, kube::RestClient::make(config, executor, metrics, lease_options));
  net::TlsNetwork network(executor);
  PosixFileSystem files;
  control::SnapshotFolder snapshots(files, options.snapshots);
  if (!options.snapshots.empty())
    settings.record = [&snapshots](const auto& snapshot, const auto&) { snapshots.add(snapshot); };
  control::Operator replica(*client, *lease_client, executor, network, metrics,
                            std::move(settings));
  control::MetricsAccess access(*client, executor, metrics);
  TRY(const auto scraped, serve_metrics(executor, replica, access, options));
  TRY(const auto probes, serve_probes(executor, replica, options));
  Status ended = ok();
  Task task = executor.spawn("operator", [&](const std::stop_token& stop) {
    ended = replica.run(stop);
    ::kill(::getpid(), SIGTERM);  // wakes the wait below
  });
  signals.wait();
  task.request_stop();
  task.join();
  if (!ended.ok() && ended.error().code() == Code::kExpired) {
    // Another replica leads. Nothing of ours may act any more, so nothing is torn down in order.
    LOG_ERROR("operator", "{}; begins anew as a standby", ended.error().what());
    begin_anew(arguments);
  }
  return ended;
}

// As CLI::Range, for which "nan" is in every range.
CLI::Validator in_range(double least, double most) {
  const CLI::Validator is_number(
      [](const std::string& text) {
        return std::isnan(std::strtod(text.c_str(), nullptr)) ? "Value " + text + " is not a number"
                                                              : std::string();
      },
      "");
  return CLI::Range(least, most) & is_number;
}

// Which cluster it serves, as whom, and where it is reached.
void add_place(CLI::App& app, Options& options) {
  app.add_option(
      "--kubeconfig", options.kubeconfig,
      "Cluster (default: $KUBECONFIG, then the cluster it runs in, then ~/.kube/config)");
  app.add_option("--namespace", options.ns, "Namespace of its Lease and Secret")
      ->capture_default_str();
  app.add_option("--installation", options.installation,
                 "Its name: it sees jobs, queues and policies whose label rubato.dev/installation "
                 "names it, or that have none; one for each independent operator of a cluster")
      ->capture_default_str();
  app.add_option("--namespaces", options.namespaces,
                 "Namespaces whose TrainingJobs it sees; in others it reads pods, no more "
                 "(default: all). One that it may not list is left alone, and the log says so")
      ->delimiter(',');
  app.add_option("--identity", options.identity, "Name of this replica")->capture_default_str();
  app.add_option("--listen", options.listen, "Where agents are answered, host:port")
      ->capture_default_str();
  app.add_option("--advertise", options.advertise,
                 "host:port by which agents reach this replica (default: --listen)");
  app.add_option(
         "--coordinators", options.coordinators,
         "Addresses that agents dial: every replica's, or the Service's (default: --advertise)")
      ->delimiter(',');
}

// What it does there.
void add_conduct(CLI::App& app, Options& options) {
  app.add_option("--gpu-resource", options.gpu_resource, "Extended resource that is one GPU")
      ->capture_default_str();
  app.add_option("--topology-levels", options.topology_levels,
                 "Levels that spec.topology of jobs names, as NAME=NODE-LABEL, the widest first: "
                 "zone=topology.kubernetes.io/zone,rack=example.com/rack; with nothing after the "
                 "equals sign there are none (default: zone=topology.kubernetes.io/zone)")
      ->delimiter(',')
      ->expected(0, -1);  // else an empty list takes the next option for its value
  app.add_option("--lease-seconds", options.lease_seconds,
                 "How long a silent leader keeps the Lease; a fail-over takes this long")
      ->check(in_range(1.5, 60))
      ->capture_default_str();
  app.add_option("--watch-seconds", options.watch_seconds,
                 "How long a watch lasts, a third more at most; one that fell silent on the way is "
                 "missed five seconds after its end")
      ->check(CLI::Range(3, 600))
      ->capture_default_str();
  app.add_option("--node-lease-seconds", options.node_lease_seconds,
                 "A node whose Lease is older gets no new pod; 0: the Lease's own duration")
      ->check(in_range(0, kWaitSecondsMost))
      ->capture_default_str();
  app.add_option("--maintenance-lead-seconds", options.maintenance_lead_seconds,
                 "So long before the time of its annotation rubato.dev/maintenance-at jobs begin "
                 "to leave a node")
      ->check(in_range(0, kLeadSecondsMost))
      ->capture_default_str();
  app.add_option("--leaving-taints", options.leaving_taints,
                 "Keys of taints that say that a node is about to end: jobs leave it at once; with "
                 "nothing after the equals sign there are none (default: those of "
                 "cluster-autoscaler, Karpenter, AWS' node termination handler, GKE and AKS)")
      ->delimiter(',')
      ->expected(0, -1);  // as of --topology-levels
  app.add_option("--gang-seconds", options.gang_seconds,
                 "All pods of a first generation must be ready within, and each that comes later")
      ->check(in_range(kGangSecondsMin, kWaitSecondsMost))
      ->capture_default_str();
  app.add_option(
         "--stall-seconds", options.stall_seconds,
         "A worker that holds the others up for so long, and for 8 median steps, is restarted")
      ->check(in_range(1, 3600))
      ->capture_default_str();
  app.add_option("--probes", options.probes,
                 "Where /metrics, /healthz and /readyz are served, ip:port (default: nowhere)");
  app.add_option("--metrics", options.metrics,
                 "Where /metrics alone is served, ip:port, over HTTPS and to accounts that may get "
                 "that URL (default: at --probes, to everybody)");
  app.add_option("--metrics-certificate", options.metrics_certificate,
                 "Folder with tls.crt and tls.key for --metrics (default: a pair of its own)");
  app.add_option("--worker-metrics-port", options.worker_metrics_port,
                 "Port of worker pods where their agents show metrics; 0: none")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app.add_option("--worker-runtime-class", options.worker_runtime_class,
                 "RuntimeClass of worker pods whose template names none (default: the cluster's)");
  app.add_option("--worker-shared-memory", options.worker_shared_memory,
                 "Size of a memory volume at /dev/shm of workers whose template mounts nothing "
                 "there, a quantity (default: the runtime's 64 MiB)");
  app.add_option("--min-gain", options.min_gain,
                 "A job grows only when it gets faster by at least this part; below zero: always")
      ->check(in_range(-1, 1))
      ->capture_default_str();
  app.add_option(
         "--certificate-hours", options.certificate_hours,
         "How long a certificate of the operator or of a job lasts; it is renewed after two "
         "thirds of that")
      ->check(in_range(kCertificateHoursMin, kCertificateHoursMost))
      ->capture_default_str();
  app.add_option("--authority-secret", options.authority_secret,
                 "Secret of type kubernetes.io/tls in --namespace whose authority signs them, "
                 "cert-manager's for example (default: an authority of its own)");
  app.add_option("--record-snapshots", options.snapshots,
                 "Folder for the latest 100 scheduling problems that differed, one JSON file each, "
                 "which `rubatoctl plan` reads; names of jobs, nodes and queues, no secrets "
                 "(default: none are written)");
  app.add_flag("--json-log", options.json_log, "One JSON object per log line");
  app.add_flag("--verbose", options.verbose, "Debug lines too");
}

// An option that is written with nothing after its equals sign takes the next one for its value.
void refuse_options_as_values(CLI::App& app) {
  const CLI::Validator is_no_option(
      [](const std::string& text) {
        return text.starts_with("--") ? "a value is missing before " + text : std::string();
      },
      "");
  for (CLI::Option* option : app.get_options())
    if (option->get_items_expected_min() > 0) option->transform(is_no_option);  // before the others
}

}  // namespace
}  // namespace rubato

int main(int argc, char** argv) {
  rubato::keep_few_heaps();
  CLI::App app{
      "The Rubato operator: watches TrainingJobs, assigns GPUs, and coordinates elastic workers.\n"
      "Run two replicas; one leads by a Lease, the other takes over. Training goes on meanwhile."};
  app.set_version_flag("--version", rubato::version_of("rubato-operator"));
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  rubato::Options options;
  char host[256] = "operator";
  ::gethostname(host, sizeof host - 1);
  options.identity = host;
  rubato::add_place(app, options);
  rubato::add_conduct(app, options);
  rubato::refuse_options_as_values(app);
  CLI11_PARSE(app, argc, argv);
  rubato::configure_log(
      {.level = options.verbose ? rubato::LogLevel::kDebug : rubato::LogLevel::kInfo,
       .json = options.json_log});
  const auto status = rubato::run(options, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "rubato-operator: %s\n", status.error().what().c_str());
  return 1;
}
