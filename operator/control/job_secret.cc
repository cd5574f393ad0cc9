#include "operator/control/job_secret.h"

#include "kube/errors.h"
#include "operator/api/resources.h"
#include "operator/control/worker_pod.h"

#include <utility>

namespace rubato::control {

namespace {

using json::Value;

Value secret_of(const api::TrainingJob& job, Value data) {
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
       {"data", std::move(data)}});
}

Value secret_of(const api::TrainingJob& job, const TrustRoot& root, const net::KeyPair& pair) {
  return secret_of(
      job, Value::object(
               {{"token", net::base64_encode(net::hmac_sha256_hex(root.master_key, job.meta.uid))},
                {"ca.crt", net::base64_encode(root.trusted())},
                {"tls.crt", net::base64_encode(pair.certificate)},
                {"tls.key", net::base64_encode(pair.private_key)}}));
}

}  // namespace

bool are_credentials_due(const api::TrainingJob& job, const TrustRoot& root,
                         const CertificateTiming& timing, WallTime now) {
  const auto& held = job.status.credentials;
  return !held || held->trust != root.digest() ||
         is_renewal_due(held->not_after, root, timing, now);
}

Status try_job_secret(kube::Client& client, const api::TrainingJob& job, const TrustRoot& root) {
  const auto made =
      client.create(kube::types::kSecret, job.meta.ns, secret_of(job, root, {}), {.dry_run = true});
  if (made.ok() || made.error().code() == Code::kAlreadyExists) return ok();
  return made.error();
}

Result<WrittenSecret> write_job_secret(kube::Client& client, const api::TrainingJob& job,
                                       const TrustRoot& root, const CertificateTiming& timing,
                                       WallTime now, bool replace) {
  net::CertificateRequest request;
  request.common_name = job.meta.uid;
  TRY(const net::KeyPair pair, issue(root, request, timing, now));
  TRY(const net::Validity validity, net::certificate_validity(pair.certificate));
  const Value secret = secret_of(job, root, pair);
  const WrittenSecret done{api::Credentials{validity.not_after, root.digest()}};
  // A quota answers who makes one that is there already as if there were none. Without `replace` it
  // is a question only: is it there?
  const auto written = client.update(kube::types::kSecret, secret, {.dry_run = !replace});
  if (written.ok()) return replace ? done : WrittenSecret{};
  if (written.error().code() == Code::kNotFound) {
    TRY_OK(client.create(kube::types::kSecret, job.meta.ns, secret));
    return done;
  }
  // One that is not there is not found, whatever is written: one that may not be what is written is
  // there (builds of before 2026-11-24 made it immutable). Who may not write at all has to try.
  bool is_there = job.status.credentials || written.error().code() == Code::kInvalid;
  if (!is_there && kube::is_forbidden(written.error())) {
    const auto made = client.create(kube::types::kSecret, job.meta.ns, secret);
    if (made.ok()) return done;
    is_there = made.error().code() == Code::kAlreadyExists;
    if (!is_there) return made.error();  // who makes it need not be able to update it
  }
  if (!is_there) return written.error();
  return WrittenSecret{{}, written.error().in("renewing Secret " + job_secret_name(job))};
}

Status empty_job_secret(kube::Client& client, const api::TrainingJob& job) {
  const auto written = client.update(kube::types::kSecret, secret_of(job, Value::object()));
  if (written.ok() || written.error().code() == Code::kNotFound) return ok();
  return written.error().in("emptying Secret " + job_secret_name(job));
}

}  // namespace rubato::control
