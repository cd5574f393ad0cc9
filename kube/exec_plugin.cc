// Runs an exec credential plugin: a program of the user's choice that prints an ExecCredential.
#include "kube/credentials.h"

#include <chrono>
#include <csignal>
#include <cstring>
#include <map>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace rubato::kube {
namespace {

struct Descriptor {
  int fd = -1;
  ~Descriptor() { close(); }
  void close() {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
};

std::vector<std::string> environment(const ExecPlugin& plugin) {
  std::map<std::string, std::string> values;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string entry(*at);
    const auto equals = entry.find('=');
    if (equals != std::string::npos) values[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  for (const auto& [key, value] : plugin.env) values[key] = value;
  json::Value info = json::Value::object({{"apiVersion", plugin.api_version},
                                          {"kind", "ExecCredential"},
                                          {"spec", json::Value::object({{"interactive", false}})}});
  if (!plugin.cluster.is_null()) info.at("spec").set("cluster", plugin.cluster);
  values["KUBERNETES_EXEC_INFO"] = json::dump(info);
  std::vector<std::string> result;
  result.reserve(values.size());
  for (const auto& [key, value] : values) result.push_back(key + "=" + value);
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (auto& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

Result<pid_t> start(const ExecPlugin& plugin, int output) {
  std::vector<std::string> args{plugin.command};
  args.insert(args.end(), plugin.args.begin(), plugin.args.end());
  std::vector<std::string> env = environment(plugin);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  pid_t pid = -1;
  const int failed = posix_spawnp(&pid, plugin.command.c_str(), &actions, nullptr,
                                  pointers(args).data(), pointers(env).data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0)
    return Error(Code::kDenied, "credential plugin " + plugin.command + ": " + strerror(failed));
  return pid;
}

// Everything the plugin prints until it closes its output, or nothing when it takes too long.
Result<std::string> read_all(int fd) {
  const auto deadline = std::chrono::steady_clock::now() + kExecLimit;
  std::string text;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd wait{fd, POLLIN, 0};
    const int ready = left.count() <= 0 ? 0 : poll(&wait, 1, static_cast<int>(left.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return Error(Code::kTimeout, "credential plugin took too long");
    char buffer[4096];
    const ssize_t count = read(fd, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
    if (text.size() > kExecOutputMax)
      return Error(Code::kInvalid, "credential plugin printed too much");
  }
}

Result<json::Value> check(const ExecPlugin& plugin, const std::string& text) {
  TRY(const json::Value credential, json::parse(text));
  if (credential["kind"].string_view_or("") != "ExecCredential" ||
      credential["apiVersion"].string_view_or("") != plugin.api_version)
    return Error(Code::kDenied, "credential plugin " + plugin.command + " did not print an " +
                                    plugin.api_version + " ExecCredential");
  const json::Value& status = credential["status"];
  const bool pair =
      status["clientCertificateData"].is_string() && status["clientKeyData"].is_string();
  if (!status["token"].is_string() && !pair)
    return Error(Code::kDenied, "credential plugin " + plugin.command + " gave no credential");
  return status;
}

}  // namespace

Result<json::Value> run_exec_plugin(const ExecPlugin& plugin) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return Error(Code::kInternal, std::string("pipe: ") + strerror(errno));
  Descriptor ours{ends[0]};
  Descriptor theirs{ends[1]};
  TRY(const pid_t pid, start(plugin, theirs.fd));
  theirs.close();
  auto text = read_all(ours.fd);
  if (!text.ok()) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!text.ok()) return text.error().in(plugin.command);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return Error(Code::kDenied, "credential plugin " + plugin.command + " failed");
  auto checked = check(plugin, text.value());
  if (!checked.ok()) return checked.error().in(plugin.command);
  return checked;
}

}  // namespace rubato::kube
