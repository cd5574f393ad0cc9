// TlsLinkNetwork: links over TCP and mutual TLS 1.3 with the job's certificate.
#pragma once

#include "worker/collective/link_network.h"

#include <memory>
#include <string>

namespace rubato::worker {

constexpr std::size_t kSocketBufferBytes = 4u << 20;
constexpr auto kDeadPeerLimit = 10s;  // TCP_USER_TIMEOUT and keep-alive: a host that vanished

struct TlsLinkConfig {
  std::string job_uid;
  std::string bind_host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any
  std::string secret_dir;  // tls.crt, tls.key, ca.crt
};

class TlsLinkNetwork : public LinkNetwork {
 public:
  // Ignores SIGPIPE for the whole process.
  static Result<std::unique_ptr<TlsLinkNetwork>> open(const TlsLinkConfig& config);
  ~TlsLinkNetwork() override;
  std::uint16_t port() const override;
  Result<std::unique_ptr<Arrival>> accept(MonoTime deadline) override;
  void close() override;
  Result<std::unique_ptr<Link>> dial(const std::string& host, std::uint16_t port, MonoTime deadline,
                                     std::stop_token stop) override;

 private:
  struct Impl;
  explicit TlsLinkNetwork(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::worker
