#include "tools/rubatoctl/session.h"

#include <cstdlib>
#include <filesystem>

namespace rubato::ctl {

namespace {

// Without "POST /apis/…: ", which is nobody's concern once the server has answered.
std::string without_request(const std::string& message) {
  for (const char* verb : {"GET /", "POST /", "PUT /", "PATCH /", "DELETE /"}) {
    const auto end = message.find(": ");
    if (message.starts_with(verb) && end != std::string::npos) return message.substr(end + 2);
  }
  return message;
}

// Of `namespaces "X" not found`; empty: it is about something else.
std::string missing_namespace(const std::string& message) {
  constexpr std::string_view kBegin = "namespaces \"";
  const auto begin = message.find(kBegin);
  const auto end = message.find("\" not found", begin);
  if (begin == std::string::npos || end == std::string::npos) return "";
  return message.substr(begin + kBegin.size(), end - begin - kBegin.size());
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace

std::string kubeconfig_for(const ClusterChoice& choice) {
  if (!choice.kubeconfig.empty() || !environment("KUBECONFIG").empty()) return choice.kubeconfig;
  for (const std::string& path :
       {environment("HOME") + "/.kube/config", local_kubeconfig(default_local_state())})
    if (is_file(path)) return path;
  return "";
}

std::string default_local_state() {
  const std::string xdg = environment("XDG_STATE_HOME");
  const std::string base = xdg.empty() ? environment("HOME") + "/.local/state" : xdg;
  return base + "/rubato/local";
}

std::string local_kubeconfig(const std::string& state) { return state + "/apiserver/kubeconfig"; }

Result<std::unique_ptr<Session>> Session::open(const ClusterChoice& choice) {
  std::unique_ptr<Session> session(new Session());
  const auto config =
      kube::default_config({.path = kubeconfig_for(choice), .context = choice.context});
  if (!config.ok()) {
    return Error(
        config.error().code(),
        config.error().what() +
            "\n  What to do: start a cluster on this machine with `rubatoctl local up`, or "
            "name one with --kubeconfig FILE, --context NAME");
  }
  session->asked_ns_ = choice.ns;
  session->ns_ = choice.ns.empty() ? config->default_namespace : choice.ns;
  TRY(session->client_,
      kube::RestClient::make(config.value(), session->executor_, session->metrics_,
                             {.user_agent = "rubatoctl (linux/amd64)"}));
  return session;
}

Result<std::vector<json::Value>> Session::list(const kube::ResourceType& type,
                                               const std::string& ns,
                                               const kube::ListOptions& options) {
  std::vector<json::Value> all;
  kube::ListOptions page = options;
  page.limit = kPage;
  do {
    auto part = client_->list(type, ns, page);
    if (!part.ok()) return advised(part.error());
    for (json::Value& item : part->items) all.push_back(std::move(item));
    page.continue_token = part->continue_token;
  } while (!page.continue_token.empty());
  return all;
}

Error advised(const Error& error) {
  const auto with = [&](const std::string& mend) {
    return Error(error.code(), error.what() + "\n  What to do: " + mend).set_reason(error.reason());
  };
  if (error.what().find("What to do:") != std::string::npos) return error;
  switch (error.code()) {
    case Code::kUnavailable:
      return with(
          "see whether the cluster runs (`rubatoctl local status`), start it with `rubatoctl local "
          "up`, or name another with --kubeconfig FILE");
    case Code::kDenied:
      return with("look at the user of your kubeconfig and at its roles");
    case Code::kNotFound:
      if (const std::string ns = missing_namespace(error.what()); !ns.empty())
        return Error(error.code(), without_request(error.what()) +
                                       "\n  What to do: `kubectl create namespace " + ns +
                                       "`, or name another one")
            .set_reason(error.reason());
      return Error(error.code(), without_request(error.what()) +
                                     "\n  What to do: see what is there with `rubatoctl get`, or "
                                     "name another namespace with -n")
          .set_reason(error.reason());
    case Code::kInvalid:
    case Code::kAlreadyExists:
    case Code::kConflict:
    case Code::kExpired:
    case Code::kExhausted:
    case Code::kCancelled:
    case Code::kInternal:
      return Error(error.code(), without_request(error.what())).set_reason(error.reason());
    case Code::kTimeout:
      return error;
  }
  return error;
}

}  // namespace rubato::ctl
