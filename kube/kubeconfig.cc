#include "kube/kubeconfig.h"

#include "common/files.h"
#include "common/net/certificates.h"
#include "common/some_of.h"
#include "common/words.h"
#include "common/yaml.h"
#include "kube/rest_url.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <yaml-cpp/yaml.h>

namespace rubato::kube {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kNamesMost = 8;

// One entry of `clusters`, `users` or `contexts`, and the folder its relative paths start from.
struct Entry {
  YAML::Node node;
  fs::path folder;
};
struct Merged {
  std::map<std::string, Entry> clusters;
  std::map<std::string, Entry> users;
  std::map<std::string, Entry> contexts;
  std::string current;
};

std::string env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string text(const YAML::Node& node, const char* key) {
  if (!node || !node.IsMap()) return "";
  const YAML::Node value = node[key];
  return value && value.IsScalar() ? value.as<std::string>() : "";
}

void merge_named(const YAML::Node& list, const char* inner, const fs::path& folder,
                 std::map<std::string, Entry>& into) {
  if (!list || !list.IsSequence()) return;
  for (const auto& item : list) {
    if (!item.IsMap()) continue;
    into.try_emplace(text(item, "name"), Entry{item[inner], folder});
  }
}

Status merge_file(const fs::path& path, Merged& merged) {
  TRY(const std::string bytes, read_input(path.string(), yaml::kMaxBytes));
  TRY_OK(yaml::check_text(bytes));
  const YAML::Node root = YAML::Load(bytes);
  if (!root.IsMap()) return ok();
  const fs::path folder = fs::absolute(path).parent_path();
  merge_named(root["clusters"], "cluster", folder, merged.clusters);
  merge_named(root["users"], "user", folder, merged.users);
  merge_named(root["contexts"], "context", folder, merged.contexts);
  if (merged.current.empty()) merged.current = text(root, "current-context");
  return ok();
}

std::string resolve(const Entry& entry, const std::string& path) {
  if (path.empty() || fs::path(path).is_absolute()) return path;
  return (entry.folder / path).string();
}

// `key`-data is base64 and wins over the path in `key`.
Result<TextOrFile> data_or_file(const Entry& entry, const std::string& key) {
  TextOrFile result;
  if (const std::string encoded = text(entry.node, (key + "-data").c_str()); !encoded.empty()) {
    auto decoded = net::base64_decode(encoded);
    if (!decoded.ok()) return decoded.error().in(key + "-data");
    result.text = std::move(decoded).value();
    return result;
  }
  result.file = resolve(entry, text(entry.node, key.c_str()));
  return result;
}

Status read_cluster(const Entry& entry, RestConfig& config) {
  config.server = text(entry.node, "server");
  config.tls_server_name = text(entry.node, "tls-server-name");
  config.insecure_skip_tls_verify = text(entry.node, "insecure-skip-tls-verify") == "true";
  if (!text(entry.node, "proxy-url").empty())
    return Error(Code::kInvalid,
                 "kubeconfig: proxy-url is not supported; name a server that needs none");
  TRY(config.credentials.authority, data_or_file(entry, "certificate-authority"));
  TRY(const ServerUrl url, parse_server_url(config.server));
  return ok();
}

Result<ExecPlugin> read_exec(const Entry& entry, const RestConfig& config) {
  const YAML::Node node = entry.node["exec"];
  ExecPlugin plugin;
  plugin.api_version = text(node, "apiVersion");
  if (plugin.api_version != "client.authentication.k8s.io/v1" &&
      plugin.api_version != "client.authentication.k8s.io/v1beta1")
    return Error(Code::kInvalid, "exec plugin: unknown apiVersion " + plugin.api_version);
  if (text(node, "interactiveMode") == "Always")
    return Error(Code::kInvalid, "exec plugin: needs a terminal (interactiveMode: Always)");
  plugin.command = text(node, "command");
  if (plugin.command.empty()) return Error(Code::kInvalid, "exec plugin: no command");
  // A bare name is looked for in PATH; a path with a slash is relative to the file.
  if (plugin.command.find('/') != std::string::npos)
    plugin.command = resolve(entry, plugin.command);
  if (const YAML::Node args = node["args"]; args && args.IsSequence()) {
    for (const auto& arg : args) plugin.args.push_back(arg.as<std::string>());
  }
  if (const YAML::Node list = node["env"]; list && list.IsSequence()) {
    for (const auto& item : list) plugin.env.emplace_back(text(item, "name"), text(item, "value"));
  }
  if (text(node, "provideClusterInfo") == "true") {
    plugin.cluster.set("server", config.server);
    const std::string& authority = config.credentials.authority.text;
    if (!authority.empty())
      plugin.cluster.set("certificate-authority-data", net::base64_encode(authority));
    if (!config.tls_server_name.empty())
      plugin.cluster.set("tls-server-name", config.tls_server_name);
    if (config.insecure_skip_tls_verify) plugin.cluster.set("insecure-skip-tls-verify", true);
  }
  return plugin;
}

Status read_user(const Entry& entry, RestConfig& config) {
  if (!entry.node || !entry.node.IsMap()) return ok();
  CredentialConfig& user = config.credentials;
  TRY(user.certificate, data_or_file(entry, "client-certificate"));
  TRY(user.private_key, data_or_file(entry, "client-key"));
  user.token.file = resolve(entry, text(entry.node, "tokenFile"));
  if (user.token.file.empty()) user.token.text = text(entry.node, "token");  // the file wins here
  user.username = text(entry.node, "username");
  user.password = text(entry.node, "password");
  if (entry.node["auth-provider"])
    return Error(Code::kInvalid, "kubeconfig: auth-provider is not supported; use exec");
  if (entry.node["exec"]) {
    TRY(user.exec, read_exec(entry, config));
  }
  if (const std::string as = text(entry.node, "as"); !as.empty()) {
    config.headers.emplace_back("Impersonate-User", as);
    if (const YAML::Node groups = entry.node["as-groups"]; groups && groups.IsSequence()) {
      for (const auto& group : groups)
        config.headers.emplace_back("Impersonate-Group", group.as<std::string>());
    }
    if (const std::string uid = text(entry.node, "as-uid"); !uid.empty())
      config.headers.emplace_back("Impersonate-Uid", uid);
  }
  return ok();
}

std::string names_of(const std::map<std::string, Entry>& entries) {
  std::vector<std::string> names;
  names.reserve(entries.size());
  for (const auto& [name, entry] : entries) names.push_back(name);
  return names.empty() ? "it has none" : "it has " + readable(some_of(names, kNamesMost));
}

Result<const Entry*> pick(const std::map<std::string, Entry>& entries, const std::string& name,
                          const char* what) {
  const auto at = entries.find(name);
  if (at == entries.end())
    return Error(Code::kInvalid, std::string("kubeconfig: no ") + what + " \"" + excerpt(name) +
                                     "\"; " + names_of(entries));
  return &at->second;
}

Result<RestConfig> select(const Merged& merged, const std::string& wanted) {
  const std::string name = wanted.empty() ? merged.current : wanted;
  if (name.empty())
    return Error(Code::kInvalid,
                 "kubeconfig: no current-context; of contexts " + names_of(merged.contexts));
  TRY(const Entry* context, pick(merged.contexts, name, "context"));
  RestConfig config;
  TRY(const Entry* cluster, pick(merged.clusters, text(context->node, "cluster"), "cluster"));
  TRY_OK(read_cluster(*cluster, config));
  if (const std::string user = text(context->node, "user"); !user.empty()) {
    TRY(const Entry* entry, pick(merged.users, user, "user"));
    TRY_OK(read_user(*entry, config));
  }
  if (const std::string ns = text(context->node, "namespace"); !ns.empty())
    config.default_namespace = ns;
  return config;
}

std::vector<fs::path> files_of(const KubeconfigOptions& options) {
  if (!options.path.empty()) return {options.path};
  std::vector<fs::path> files;
  std::stringstream list(env("KUBECONFIG"));
  for (std::string item; std::getline(list, item, ':');) {
    if (!item.empty()) files.emplace_back(item);
  }
  if (files.empty() && !env("HOME").empty())
    files.push_back(fs::path(env("HOME")) / ".kube" / "config");
  return files;
}

}  // namespace

Result<RestConfig> load_kubeconfig(const KubeconfigOptions& options) {
  Merged merged;
  bool found = false;
  for (const auto& file : files_of(options)) {
    std::error_code ignored;
    if (!fs::exists(file, ignored)) continue;  // a list may name files that are not there
    found = true;
    try {
      if (const Status read = merge_file(file, merged); !read.ok())
        return Error(Code::kInvalid, file.string() + ": " + read.error().what());
    } catch (const YAML::Exception& error) {
      return Error(Code::kInvalid, file.string() + ": " + error.what());
    }
  }
  if (!found) {
    std::string looked_for;
    for (const auto& file : files_of(options))
      looked_for += (looked_for.empty() ? "" : ", ") + file.string();
    return Error(Code::kNotFound, "there is no kubeconfig file" +
                                      (looked_for.empty() ? "" : " (" + looked_for + ")") +
                                      "; name one by --kubeconfig or in KUBECONFIG");
  }
  try {
    return select(merged, options.context);
  } catch (const YAML::Exception& error) {
    return Error(Code::kInvalid, std::string("kubeconfig: ") + error.what());
  }
}

Result<RestConfig> in_cluster_config(const std::string& folder) {
  const std::string host = env("KUBERNETES_SERVICE_HOST");
  const std::string port = env("KUBERNETES_SERVICE_PORT");
  std::error_code ignored;
  if (host.empty() || port.empty() || !fs::exists(fs::path(folder) / "token", ignored))
    return Error(Code::kNotFound, "not in a cluster");
  RestConfig config;
  const bool v6 = host.find(':') != std::string::npos;
  config.server = "https://" + (v6 ? "[" + host + "]" : host) + ":" + port;
  config.credentials.token.file = folder + "/token";
  config.credentials.authority.file = folder + "/ca.crt";
  std::ifstream in(folder + "/namespace");
  std::string ns;
  if (in >> ns) config.default_namespace = ns;
  return config;
}

Result<RestConfig> default_config(const KubeconfigOptions& options, const std::string& folder) {
  if (!options.path.empty() || !options.context.empty() || !env("KUBECONFIG").empty())
    return load_kubeconfig(options);
  auto inside = in_cluster_config(folder);
  if (inside.ok() || inside.error().code() != Code::kNotFound) return inside;
  return load_kubeconfig(options);
}

}  // namespace rubato::kube
