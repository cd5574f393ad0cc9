// The Secret of a job: its trust domain. Created once per job uid and never read back: token,
// certificate and key of the job, and the authority that signed both it and the operator's.
#pragma once

#include "common/clock.h"
#include "common/net/certificates.h"
#include "operator/api/training_job.h"
#include "operator/kube/client.h"

namespace rubato::control {

struct TrustRoot {
  net::KeyPair authority;
  std::string master_key;
};

constexpr auto kCertificateLife = std::chrono::hours(24 * 365);

// Reads the installation's own Secret "rubato-operator-trust" in `ns`, or makes it: the first
// replica that starts wins, the others read what it wrote.
Result<TrustRoot> ensure_trust_root(kube::Client& client, const std::string& ns, WallTime now);

// AlreadyExists counts as done.
Status ensure_job_secret(kube::Client& client, const TrustRoot& root, const api::TrainingJob& job,
                         WallTime now);

// The certificate that a replica shows to agents; its name is "rubato-operator".
Result<net::KeyPair> operator_certificate(const TrustRoot& root, WallTime now);

}  // namespace rubato::control
