// rubato-localnode: a Kubernetes node that runs pods as processes of this machine.
#include "common/executor.h"
#include "common/heaps.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/stop_signals.h"
#include "common/version.h"
#include "kube/rest_client.h"
#include "tools/localnode/log_server.h"
#include "tools/localnode/node_agent.h"
#include "tools/localnode/sandbox.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <CLI/CLI.hpp>
#include <unistd.h>

namespace rubato::localnode {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

int sandbox_main(const std::string& path) {
  const auto value = json::parse(read_file(path));
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  const auto spec = value.ok() ? sandbox_spec(*value) : Result<SandboxSpec>(value.error());
  if (!spec.ok()) {
    std::fprintf(stderr, "%s: %s\n", path.c_str(), spec.error().what().c_str());
    return 127;
  }
  return run_sandbox(*spec);
}

struct Options {
  std::string kubeconfig;
  std::string client_ca;
  NodeSettings node;
  int port = 10250;
  std::string gpus;
  std::string gpu_locks = "/tmp/rubato-gpus";
  GpuPaths gpu_paths;
};

// The node's slots are these GPUs, its type is theirs.
Status take_gpus(Options& options) {
  if (options.gpus.empty()) return ok();
  TRY(const std::vector<Gpu> found, find_gpus(options.gpu_paths));
  TRY(std::vector<Gpu> chosen, choose_gpus(found, options.gpus));
  options.node.slots = static_cast<int>(chosen.size());
  options.node.gpu_type = product_label(chosen.front().product);
  options.node.gpus = GpuPool(std::move(chosen), options.gpu_locks);
  options.node.gpu_devices = options.gpu_paths.devices;
  if (const char* path = std::getenv("LD_LIBRARY_PATH")) options.node.library_path = path;
  return ok();
}

Status run(Options options) {
  TRY_OK(probe_namespaces());
  TRY_OK(take_gpus(options));
  const StopSignals signals;
  ::signal(SIGPIPE, SIG_IGN);

  ThreadExecutor executor;
  Metrics metrics;
  TRY(const kube::RestConfig config, kube::default_config({.path = options.kubeconfig}));
  TRY(const auto client, kube::RestClient::make(config, executor, metrics,
                                                {.user_agent = "rubato-localnode (linux/amd64)"}));
  std::error_code error;
  for (const std::string& folder : {options.node.root, options.node.claims}) {
    std::filesystem::create_directories(folder, error);
    if (error) return Error(Code::kInvalid, "cannot make " + folder + ": " + error.message());
  }
  options.node.kubelet_port = options.port;
  const std::string address = options.node.address;
  NodeAgent node(executor, *client, metrics, std::move(options.node));
  LogServer logs(executor, node);
  const std::string authority = options.client_ca.empty() ? "" : read_file(options.client_ca);
  if (!options.client_ca.empty() && authority.empty()) {
    return Error(Code::kInvalid, "--client-ca " + options.client_ca + " cannot be read");
  }
  TRY(const int port, logs.listen(address, options.port, authority));
  (void)port;
  logs.start();
  TRY_OK(node.start());
  signals.wait();
  LOG_INFO("localnode", "stopping");
  node.stop();
  return ok();
}

}  // namespace
}  // namespace rubato::localnode

int main(int argc, char** argv) {
  using namespace rubato::localnode;
  if (argc == 3 && std::string_view(argv[1]) == "--sandbox") return sandbox_main(argv[2]);
  rubato::keep_few_heaps();

  CLI::App app{
      "A Kubernetes node that runs pods as processes of this machine: for laptops and tests.\n"
      "Each pod gets its own user, mount and PID namespace and its own loopback address. Killing\n"
      "this process with its process group is a power cut: every pod dies with it."};
  app.set_version_flag("--version", rubato::version_of("rubato-localnode"));
  Options options;
  options.node.cpus = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  options.node.memory_bytes =
      static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE);
  options.node.path = std::filesystem::read_symlink("/proc/self/exe").parent_path().string() +
                      ":/usr/local/bin:/usr/bin:/bin";
  app.add_option("--kubeconfig", options.kubeconfig,
                 "Cluster to join (default: $KUBECONFIG, then ~/.kube/config)");
  app.add_option("--name", options.node.name, "Name of the node")->required();
  app.add_option("--address", options.node.address,
                 "The node's loopback address, 127.x.y.1; its pods get 127.x.y.2 and up")
      ->required()
      ->check(CLI::ValidIPV4);
  app.add_option("--port", options.port, "Port of the log server")->capture_default_str();
  auto* slots = app.add_option("--slots", options.node.slots, "How many of the resource it offers")
                    ->check(CLI::Range(0, 64))
                    ->capture_default_str();
  app.add_option("--resource", options.node.resource, "Name of the extended resource")
      ->capture_default_str();
  app.add_option("--gpu-type", options.node.gpu_type, "Value of the label nvidia.com/gpu.product")
      ->capture_default_str();
  app.add_option("--gpus", options.gpus,
                 "GPUs of this machine as its slots: auto (all), or numbers of device nodes (0,2). "
                 "Each is one pod's; its containers get CUDA_VISIBLE_DEVICES, RUBATO_DEVICE=cuda "
                 "and this program's LD_LIBRARY_PATH, where their own environment does not say "
                 "otherwise. Sets --slots and --gpu-type")
      ->excludes(slots);
  app.add_option("--gpu-locks", options.gpu_locks,
                 "Folder, shared by all nodes of this machine, whose locked files tell which GPUs "
                 "are in use")
      ->capture_default_str();
  app.add_option("--gpu-devices", options.gpu_paths.devices, "Folder of the device nodes")
      ->capture_default_str();
  app.add_option("--gpu-driver", options.gpu_paths.driver, "Where the driver shows its GPUs")
      ->capture_default_str();
  app.add_option("--root", options.node.root, "Folder for pods and their logs")->required();
  app.add_option("--claims", options.node.claims,
                 "Folder of PersistentVolumeClaims: <claims>/<namespace>/<name>")
      ->required();
  app.add_option("--path", options.node.path, "PATH inside pods: where commands are looked up")
      ->capture_default_str();
  app.add_option("--cpus", options.node.cpus, "CPUs it offers")->capture_default_str();
  app.add_option("--client-ca", options.client_ca,
                 "PEM file: only callers with a certificate it signed may read logs");
  CLI11_PARSE(app, argc, argv);

  const auto status = run(std::move(options));
  if (status.ok()) return 0;
  std::fprintf(stderr, "rubato-localnode: %s\n", status.error().what().c_str());
  return 1;
}
