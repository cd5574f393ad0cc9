// rubato-apiserver: the in-memory API server as a program. See README.md.
#include "apiserver/front/node_lifecycle.h"
#include "apiserver/front/router.h"
#include "apiserver/front/state_folder.h"
#include "apiserver/front/wire_server.h"
#include "apiserver/memory/journal.h"
#include "apiserver/memory/memory_client.h"
#include "apiserver/memory/memory_server.h"
#include "common/executor.h"
#include "common/files.h"
#include "common/log.h"
#include "common/stop_signals.h"
#include "common/version.h"
#include "common/words.h"
#include "common/yaml.h"
#include "operator/api/rules.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace rubato::apiserver {
namespace {

constexpr Duration kFlushPeriod = 2s;
constexpr std::size_t kFileBytesMax = 64u << 20;

const char* const kAbout =
    "A Kubernetes API server for one machine: objects in memory, a journal on disk, HTTPS on\n"
    "loopback with a bearer token. Plain kubectl works against it:\n\n"
    "  rubato-apiserver --state ~/.rubato --crds crds &\n"
    "  export KUBECONFIG=~/.rubato/kubeconfig\n"
    "  kubectl get tj\n\n"
    "It serves the kinds that Rubato uses (pods, nodes, namespaces, secrets, configmaps, "
    "services,\n"
    "serviceaccounts, events, leases, volumes and claims, priority classes, CRDs and what they\n"
    "define). It runs no controllers and no nodes: see rubato-operator and rubato-localnode.";

struct Arguments {
  std::string state;
  std::string listen = "127.0.0.1:0";
  std::vector<std::string> crds;
  std::string agent_authority;
  bool ephemeral = false;
  std::size_t history = kube::ServerOptions{}.history_events;
  std::int64_t event_ttl_s =
      std::chrono::duration_cast<std::chrono::seconds>(kube::ServerOptions{}.event_lifetime)
          .count();
  bool verbose = false;
};

std::string default_state() {
  const char* xdg = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (xdg != nullptr && *xdg != '\0') return std::string(xdg) + "/rubato/apiserver";
  return std::string(home != nullptr ? home : ".") + "/.local/state/rubato/apiserver";
}

// Creates or replaces the definition, as `kubectl apply` would.
Status install(kube::MemoryServer& server, json::Value crd) {
  const kube::ResourceType& type = kube::types::kCustomResourceDefinition;
  const std::string name = kube::name_of(crd);
  const auto present = server.get(type, {"", name});
  if (!present.ok()) {
    const auto made = server.create(type, "", crd);
    return made.ok() ? ok() : Status(made.error().to_error().in(name));
  }
  crd.at("metadata").set("resourceVersion", kube::resource_version_of(present.value()));
  const auto changed = server.update(type, {"", name}, crd);
  return changed.ok() ? ok() : Status(changed.error().to_error().in(name));
}

bool is_manifest(const std::string& name) {
  return name.ends_with(".yaml") || name.ends_with(".yml") || name.ends_with(".json");
}

Status install_crds(kube::MemoryServer& server, const std::string& place) {
  PosixFileSystem disk;
  std::vector<std::string> files = {place};
  TRY(const FileStat about, disk.stat(place));
  if (about.is_directory) {
    TRY(files, disk.list(place));
    std::erase_if(files, [](const std::string& name) { return !is_manifest(name); });
    for (std::string& name : files) name = place + "/" + name;
  }
  for (const std::string& file : files) {
    TRY(const std::string text, read_text(disk, file, kFileBytesMax));
    auto documents = yaml::parse_all(text);
    if (!documents.ok()) return documents.error().in(file);
    for (const json::Value& document : *documents)
      if (document["kind"].string_view_or("") == "CustomResourceDefinition")
        TRY_OK(install(server, document));
  }
  return ok();
}

// Rules of our own kinds, which the real server reads as CEL from the CRDs.
void install_rules(kube::MemoryServer& server) {
  for (const kube::InfoPtr& info : server.resources()) {
    if (!info->custom || info->type.group != "rubato.dev") continue;
    server.set_validator(info->storage_id, [kind = info->type.kind](const json::Value& old_object,
                                                                    const json::Value& new_object) {
      std::vector<kube::RuleFailure> out;
      for (const api::Violation& v : api::validate(kind, old_object, new_object))
        out.push_back({v.field, v.message});
      return out;
    });
  }
}

Result<std::unique_ptr<WireServer>> listen(const Arguments& arguments, const StateFolder& folder,
                                           Router& router) {
  WireConfig config;
  TRY(config.listen, net::parse_endpoint(arguments.listen));
  config.certificate = folder.server().certificate;
  config.private_key = folder.server().private_key;
  config.agent_certificate = folder.agent_client().certificate;
  config.agent_private_key = folder.agent_client().private_key;
  if (!arguments.agent_authority.empty()) {
    PosixFileSystem disk;
    TRY(config.agent_authority, read_text(disk, arguments.agent_authority, kFileBytesMax));
  }
  if (config.listen.port == 0 && folder.last_port() != 0) {  // clients keep their kubeconfig
    WireConfig same = config;
    same.listen.port = folder.last_port();
    if (auto server = WireServer::start(same, router); server.ok()) return server;
  }
  return WireServer::start(config, router);
}

Status serve(const Arguments& arguments) {
  const StopSignals signals;

  SystemClock clock;
  TRY(const net::Endpoint wanted, net::parse_endpoint(arguments.listen));
  TRY(const std::unique_ptr<StateFolder> folder,
      StateFolder::open(arguments.state, clock, wanted.host));
  kube::ServerOptions options;
  options.seed = random_seed();
  options.history_events = arguments.history;
  options.event_lifetime = std::chrono::seconds(arguments.event_ttl_s);
  kube::MemoryServer memory(clock, options);
  std::unique_ptr<kube::Journal> journal;
  if (!arguments.ephemeral) {
    TRY(journal, kube::Journal::attach(memory, folder->journal_path()));
  }
  for (const std::string& place : arguments.crds) TRY_OK(install_crds(memory, place));
  install_rules(memory);
  Router router(memory, folder->token());
  TRY(const std::unique_ptr<WireServer> wire, listen(arguments, *folder, router));
  TRY_OK(folder->publish(wire->local()));
  LOG_INFO("apiserver", "serving on https://{}", to_string(wire->local()));
  std::printf("export KUBECONFIG=%s\n", shell_word(folder->kubeconfig_path()).c_str());
  std::fflush(stdout);

  ThreadExecutor executor;
  kube::MemoryClient client(memory, executor);
  const Task nodes = executor.spawn("nodes", [&](std::stop_token stop) {
    while (executor.sleep_for(kNodeLifecyclePeriod, stop)) {
      const auto tended = tend_nodes(client, clock);
      if (!tended.ok()) LOG_WARNING("apiserver", "nodes: {}", tended.error().to_string());
    }
  });

  while (!signals.wait(kFlushPeriod)) {
    if (journal != nullptr) {
      const Status flushed = journal->flush();
      if (!flushed.ok()) return flushed.error().in("the journal");
    }
  }
  LOG_INFO("apiserver", "stopping");
  return ok();
}

int run(int argc, char** argv) {
  Arguments arguments;
  arguments.state = default_state();
  CLI::App app(kAbout, "rubato-apiserver");
  app.set_version_flag("--version", version_of("rubato-apiserver"));
  app.add_option("--state", arguments.state,
                 "Folder for the journal, certificates, token and kubeconfig (created, mode 0700)")
      ->capture_default_str();
  app.add_option("--listen", arguments.listen,
                 "IP:PORT to listen on; port 0 takes the port of the last run, or a free one")
      ->capture_default_str();
  app.add_option("--crds", arguments.crds,
                 "File or folder of CustomResourceDefinitions, installed at the start");
  app.add_option("--agent-authority", arguments.agent_authority,
                 "CA file that the log endpoints of nodes must be signed by; any, if not given");
  app.add_option("--history", arguments.history,
                 "Changes kept per kind; a watch from before them is told to list again")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_option("--event-ttl", arguments.event_ttl_s,
                 "Seconds for which an Event is kept; an hour, as in kube-apiserver")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_flag("--ephemeral", arguments.ephemeral, "Keep no journal: objects end with the process");
  app.add_flag("-v,--verbose", arguments.verbose, "Log every request");
  CLI11_PARSE(app, argc, argv);
  LogConfig log;
  if (arguments.verbose) log.level = LogLevel::kDebug;
  configure_log(log);
  const Status served = serve(arguments);
  if (served.ok()) return 0;
  std::fprintf(stderr, "rubato-apiserver: %s\n", served.error().what().c_str());
  return 1;
}

}  // namespace
}  // namespace rubato::apiserver

int main(int argc, char** argv) { return rubato::apiserver::run(argc, argv); }
