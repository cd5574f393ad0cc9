// StateFolder: what rubato-apiserver keeps between runs: authority and certificates, the token, the
// port, the kubeconfig, the journal. All files are 0600, the folder 0700; one server at a time.
//
//   ca.crt ca.key  server.crt server.key  agent-client.crt agent-client.key  token  port
//   kubeconfig     state.journal          lock
#pragma once

#include "common/clock.h"
#include "common/net/certificates.h"
#include "common/net/channel.h"
#include "common/result.h"

#include <memory>
#include <string>

namespace rubato::apiserver {

class StateFolder {
 public:
  // Creates what is missing. A certificate that is not valid now (a clock was hours ahead, or it is
  // ten years old) is made anew, and with another authority what that one signed. kUnavailable when
  // another server holds the folder.
  static Result<std::unique_ptr<StateFolder>> open(const std::string& path, const Clock& clock,
                                                   const std::string& listen_host);
  ~StateFolder();

  const net::KeyPair& authority() const { return authority_; }
  const net::KeyPair& server() const { return server_; }
  const net::KeyPair& agent_client() const { return agent_client_; }
  const std::string& token() const { return token_; }
  std::uint16_t last_port() const { return last_port_; }  // 0: never listened
  std::string journal_path() const { return path_ + "/state.journal"; }
  std::string kubeconfig_path() const { return path_ + "/kubeconfig"; }

  // Writes the kubeconfig for this address and remembers the port.
  Status publish(const net::Endpoint& address) const;

 private:
  explicit StateFolder(std::string path) : path_(std::move(path)) {}
  Result<net::KeyPair> pair(const std::string& name, const net::CertificateRequest& request,
                            WallTime now) const;

  std::string path_;
  int lock_ = -1;
  net::KeyPair authority_;
  net::KeyPair server_;
  net::KeyPair agent_client_;
  std::string token_;
  std::uint16_t last_port_ = 0;
};

}  // namespace rubato::apiserver
