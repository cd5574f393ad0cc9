// The Secret of a job: token, certificate and key of the job, and whom its workers are to trust.
// One per job uid. Made with the first pods, replaced when status.credentials says that it is time
// (a kubelet brings it into pods that run), emptied when the job is over, and never read back.
#pragma once

#include "common/clock.h"
#include "kube/client.h"
#include "operator/api/training_job.h"
#include "operator/control/trust.h"

namespace rubato::control {

// What status.credentials says is not what the job should hold by `root`.
bool are_credentials_due(const api::TrainingJob& job, const TrustRoot& root,
                         const CertificateTiming& timing, WallTime now);

struct WrittenSecret {
  std::optional<api::Credentials> credentials;  // nothing: the Secret that is there stays
  Status renewed = ok();                        // why it stays although it was to be replaced
};
// Would the API server let it be made? It is there: yes.
Status try_job_secret(kube::Client& client, const api::TrainingJob& job, const TrustRoot& root);

// An error: there may be none.
Result<WrittenSecret> write_job_secret(kube::Client& client, const api::TrainingJob& job,
                                       const TrustRoot& root, const CertificateTiming& timing,
                                       WallTime now, bool replace);

// Of a job that is over: nobody can be its member any more by what the Secret held. It stays, for
// to delete one the operator would need the right to delete every Secret of the namespace.
Status empty_job_secret(kube::Client& client, const api::TrainingJob& job);

}  // namespace rubato::control
