// Private to worker/collective: the job's certificate and what a peer must present. Wraps OpenSSL.
#pragma once

#include "common/result.h"
#include "worker/collective/tls_link.h"

#include <memory>
#include <string>

namespace rubato::worker {

// Mutual TLS 1.3 by the job's Secret: tls.crt, tls.key and ca.crt in one folder. Every worker of a
// job presents the same certificate; a peer is trusted when it presents that very one, or one that
// is signed by ca.crt and names the job uid (common name). The files are read again once they have
// changed, for links that are made from then on; what cannot be used leaves those before in place,
// and is read again for the next link.
// Thread-safe after open().
class TlsIdentity {
 public:
  static Result<std::unique_ptr<TlsIdentity>> open(const std::string& secret_dir,
                                                   const std::string& job_uid);
  ~TlsIdentity();

  enum class Side { kDials, kAccepts };
  // Runs the handshake on a connected, nonblocking socket and checks the peer. Takes `fd` over: it
  // is closed on failure. kDenied: not a worker of this job.
  Result<std::unique_ptr<Link>> secure(int fd, Side side, MonoTime deadline,
                                       const StopSignal& cancel) const;

 private:
  struct Impl;
  explicit TlsIdentity(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::worker
