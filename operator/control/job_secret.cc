#include "operator/control/job_secret.h"

#include "operator/api/resources.h"
#include "operator/control/worker_pod.h"

namespace rubato::control {

namespace {

using json::Value;

Value secret_of(const api::TrainingJob& job, const TrustRoot& root, const net::KeyPair& pair) {
  return Value::object(
      {{"apiVersion", "v1"},
       {"kind", "Secret"},
       {"metadata",
        Value::object(
            {{"name", job_secret_name(job)},
             {"namespace", job.meta.ns},
             {"labels", Value::object({{std::string(api::kLabelJob), job.meta.name}})},
             {"ownerReferences", Value::array({Value::object({{"apiVersion", api::kApiVersion},
                                                              {"kind", "TrainingJob"},
                                                              {"name", job.meta.name},
                                                              {"uid", job.meta.uid},
                                                              {"controller", true},
                                                              {"blockOwnerDeletion", true}})})}})},
       {"type", "Opaque"},
       {"data", Value::object({{"token", net::base64_encode(
                                             net::hmac_sha256_hex(root.master_key, job.meta.uid))},
                               {"ca.crt", net::base64_encode(root.trusted())},
                               {"tls.crt", net::base64_encode(pair.certificate)},
                               {"tls.key", net::base64_encode(pair.private_key)}})}});
}

}  // namespace

bool are_credentials_due(const api::TrainingJob& job, const TrustRoot& root,
                         const CertificateTiming& timing, WallTime now) {
  const auto& held = job.status.credentials;
  return !held || held->trust != root.digest() ||
         is_renewal_due(held->not_after, root, timing, now);
}

Result<WrittenSecret> write_job_secret(kube::Client& client, const api::TrainingJob& job,
                                       const TrustRoot& root, const CertificateTiming& timing,
                                       WallTime now, bool replace) {
  net::CertificateRequest request;
  request.common_name = job.meta.uid;
  TRY(const net::KeyPair pair, issue(root, request, timing, now));
  TRY(const net::Validity validity, net::certificate_validity(pair.certificate));
  const Value secret = secret_of(job, root, pair);
  const auto created = client.create(kube::types::kSecret, job.meta.ns, secret);
  if (!created.ok()) {
    if (created.error().code() != Code::kAlreadyExists)
      return created.error().in("creating the Secret of the job");
    if (!replace) return WrittenSecret{};
    const auto written = client.update(kube::types::kSecret, secret);
    if (!written.ok())
      return WrittenSecret{{}, written.error().in("renewing Secret " + job_secret_name(job))};
  }
  return WrittenSecret{api::Credentials{validity.not_after, root.digest()}};
}

}  // namespace rubato::control
