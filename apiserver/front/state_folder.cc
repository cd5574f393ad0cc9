#include "apiserver/front/state_folder.h"

#include "common/json.h"
#include "common/log.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rubato::apiserver {
namespace {

constexpr auto kLifetime = std::chrono::hours(24 * 365 * 10);
constexpr std::size_t kTokenBytes = 32;
// Names of files, without .crt and .key.
constexpr const char* kAuthority = "ca";
constexpr const char* kServer = "server";
constexpr const char* kAgentClient = "agent-client";

Error failed(const std::string& what) {
  return Error(Code::kInternal, what + ": " + std::strerror(errno));
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// Whole or not at all, readable by the owner alone.
Status write_file(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  const int fd = ::open(fresh.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) return failed("creating " + fresh);
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       ::fsync(fd) == 0;
  ::close(fd);
  if (!written || ::rename(fresh.c_str(), path.c_str()) != 0) return failed("writing " + path);
  return ok();
}

net::CertificateRequest lifetime(const Clock& clock, const std::string& name) {
  net::CertificateRequest request;
  request.common_name = name;
  request.not_before = clock.wall() - std::chrono::hours(1);
  request.not_after = clock.wall() + kLifetime;
  return request;
}

bool is_valid(const std::string& certificate, WallTime now) {
  const auto validity = net::certificate_validity(certificate);
  return validity.ok() && validity->not_before <= now && now <= validity->not_after;
}

}  // namespace

StateFolder::~StateFolder() {
  if (lock_ >= 0) ::close(lock_);
}

// Who is interrupted here leaves a certificate missing, never one that does not fit its key or its
// authority.
Result<net::KeyPair> StateFolder::pair(const std::string& name,
                                       const net::CertificateRequest& request, WallTime now) const {
  const std::string certificate = path_ + "/" + name + ".crt";
  net::KeyPair out{read_file(certificate), read_file(path_ + "/" + name + ".key")};
  if (is_valid(out.certificate, now) && !out.private_key.empty()) return out;
  if (!out.certificate.empty())
    LOG_WARNING("apiserver", "{} is not valid now: made anew", certificate);
  ::unlink(certificate.c_str());
  if (name == kAuthority) {
    for (const char* signed_by_it : {kServer, kAgentClient})
      ::unlink((path_ + "/" + signed_by_it + ".crt").c_str());
    TRY(out, net::make_authority(request.common_name, request.not_before, request.not_after));
  } else {
    TRY(out, net::issue_certificate(authority_, request));
  }
  TRY_OK(write_file(path_ + "/" + name + ".key", out.private_key));
  TRY_OK(write_file(certificate, out.certificate));
  return out;
}

Result<std::unique_ptr<StateFolder>> StateFolder::open(const std::string& path, const Clock& clock,
                                                       const std::string& listen_host) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return Error(Code::kInternal, "creating " + path + ": " + error.message());
  std::unique_ptr<StateFolder> folder(
      new StateFolder(std::filesystem::absolute(path).lexically_normal().string()));
  if (::chmod(folder->path_.c_str(), 0700) != 0) return failed("chmod " + path);
  folder->lock_ = ::open((folder->path_ + "/lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (folder->lock_ < 0) return failed("opening the lock in " + path);
  if (::flock(folder->lock_, LOCK_EX | LOCK_NB) != 0)
    return Error(Code::kUnavailable, "another rubato-apiserver uses " + folder->path_);
  TRY(folder->authority_, folder->pair(kAuthority, lifetime(clock, "rubato-local"), clock.wall()));
  net::CertificateRequest server = lifetime(clock, "rubato-apiserver");
  server.dns_names = {"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"};
  server.ip_addresses = {"127.0.0.1", "::1"};
  if (listen_host != "127.0.0.1" && listen_host != "::1" && listen_host != "0.0.0.0")
    server.ip_addresses.push_back(listen_host);
  server.client = false;
  TRY(folder->server_, folder->pair(kServer, server, clock.wall()));
  net::CertificateRequest client = lifetime(clock, "rubato-apiserver-agent-client");
  client.server = false;
  TRY(folder->agent_client_, folder->pair(kAgentClient, client, clock.wall()));
  folder->token_ = read_file(folder->path_ + "/token");
  if (folder->token_.empty()) {
    folder->token_ = net::random_hex(kTokenBytes);
    TRY_OK(write_file(folder->path_ + "/token", folder->token_));
  }
  const std::string port = read_file(folder->path_ + "/port");
  if (!port.empty()) folder->last_port_ = static_cast<std::uint16_t>(std::atoi(port.c_str()));
  return folder;
}

Status StateFolder::publish(const net::Endpoint& address) const {
  using json::Value;
  const auto named = [](const char* name, const char* key, Value value) {
    return Value::array({Value::object({{"name", name}, {key, std::move(value)}})});
  };
  const std::string host =
      address.host == "0.0.0.0" || address.host == "::" ? "127.0.0.1" : address.host;
  const net::Endpoint shown{host, address.port};
  const Value config = Value::object(
      {{"apiVersion", "v1"},
       {"kind", "Config"},
       {"clusters", named("rubato", "cluster",
                          Value::object({{"server", "https://" + to_string(shown)},
                                         {"certificate-authority-data",
                                          net::base64_encode(authority_.certificate)}}))},
       {"users", named("rubato", "user", Value::object({{"token", token_}}))},
       {"contexts",
        named(
            "rubato", "context",
            Value::object({{"cluster", "rubato"}, {"user", "rubato"}, {"namespace", "default"}}))},
       {"current-context", "rubato"}});
  TRY_OK(write_file(path_ + "/port", std::to_string(address.port)));
  return write_file(kubeconfig_path(), json::dump(config, 2) + "\n");
}

}  // namespace rubato::apiserver
