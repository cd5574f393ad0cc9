// Credentials: how to prove who we are to an API server, and how to know that it is the right one.
// Everything may change while we run: files are read again, plugins are run again. Thread-safe.
// Reads files and runs programs: only for the real world.
#pragma once

#include "common/clock.h"
#include "common/json.h"
#include "common/result.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace rubato::kube {

constexpr auto kTokenFileAge = 60s;     // read again after this time, and after a 401
constexpr auto kCertificateAge = 300s;  // the same
constexpr auto kExpiryLeeway = 10s;     // a credential this close to its end is renewed
constexpr auto kExecLimit = 60s;        // a plugin that runs longer is killed
constexpr std::size_t kExecOutputMax = 1u << 20;

// What one connection uses. PEM texts.
struct Credential {
  std::string authorization;  // value of the header, or ""
  std::string certificate;    // of the client, or ""
  std::string private_key;
  std::string authority;  // who may have signed the server's certificate; "": the system's
};

// A text given directly, or the file it stands in. The text wins.
struct TextOrFile {
  std::string text;
  std::string file;
  bool empty() const { return text.empty() && file.empty(); }
};

// An exec plugin of a kubeconfig.
struct ExecPlugin {
  std::string api_version;  // client.authentication.k8s.io/v1 or v1beta1
  std::string command;      // run without a shell
  std::vector<std::string> args;
  std::vector<std::pair<std::string, std::string>> env;
  json::Value cluster;  // spec.cluster of KUBERNETES_EXEC_INFO, or null
};

struct CredentialConfig {
  TextOrFile authority;
  TextOrFile certificate;
  TextOrFile private_key;
  TextOrFile token;
  std::string username;
  std::string password;
  std::optional<ExecPlugin> exec;
};

class Credentials {
 public:
  Credentials(const Clock& clock, CredentialConfig config);
  ~Credentials();
  Result<Credential> get();
  // The server answered 401: read the files of token and client certificate again, and forget what
  // came from a plugin.
  void drop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs a plugin once. The ExecCredential's status, checked.
Result<json::Value> run_exec_plugin(const ExecPlugin& plugin);

}  // namespace rubato::kube
