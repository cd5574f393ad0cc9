#include "operator/control/job_secret.h"

#include "operator/api/resources.h"
#include "operator/control/worker_pod.h"

namespace rubato::control {

namespace {

using json::Value;
constexpr const char* kTrustSecret = "rubato-operator-trust";
constexpr auto kClockSkew = std::chrono::hours(1);

Value encoded(const std::string& text) { return net::base64_encode(text); }

Result<TrustRoot> read_trust_root(const Value& secret) {
  const Value& data = secret["data"];
  TrustRoot root;
  TRY(root.authority.certificate, net::base64_decode(data["ca.crt"].string_or("")));
  TRY(root.authority.private_key, net::base64_decode(data["ca.key"].string_or("")));
  TRY(root.master_key, net::base64_decode(data["master-key"].string_or("")));
  if (root.master_key.empty() || root.authority.private_key.empty()) {
    return Error(Code::kInvalid,
                 std::string("Secret ") + kTrustSecret +
                     " lacks ca.crt, ca.key or master-key; delete it to have it made anew");
  }
  return root;
}

}  // namespace

Result<TrustRoot> ensure_trust_root(kube::Client& client, const std::string& ns, WallTime now) {
  auto found = client.get(kube::types::kSecret, {ns, kTrustSecret});
  if (found.ok()) return read_trust_root(*found);
  if (found.error().code() != Code::kNotFound) return found.error().in("reading the trust root");

  TRY(const net::KeyPair authority,
      net::make_authority("rubato", now - kClockSkew, now + 10 * kCertificateLife));
  const Value secret =
      Value::object({{"apiVersion", "v1"},
                     {"kind", "Secret"},
                     {"metadata", Value::object({{"name", kTrustSecret}, {"namespace", ns}})},
                     {"type", "Opaque"},
                     {"data", Value::object({{"ca.crt", encoded(authority.certificate)},
                                             {"ca.key", encoded(authority.private_key)},
                                             {"master-key", encoded(net::random_hex(32))}})}});
  auto created = client.create(kube::types::kSecret, ns, secret);
  if (created.ok()) return read_trust_root(*created);
  if (created.error().code() != Code::kAlreadyExists) {
    return created.error().in("creating the trust root");
  }
  TRY(const Value theirs, client.get(kube::types::kSecret, {ns, kTrustSecret}));
  return read_trust_root(theirs);
}

Status ensure_job_secret(kube::Client& client, const TrustRoot& root, const api::TrainingJob& job,
                         WallTime now) {
  net::CertificateRequest request;
  request.common_name = job.meta.uid;
  request.dns_names = {job.meta.uid};
  request.not_before = now - kClockSkew;
  request.not_after = now + kCertificateLife;
  TRY(const net::KeyPair pair, net::issue_certificate(root.authority, request));
  const Value secret = Value::object(
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
       {"immutable", true},
       {"data",
        Value::object({{"token", encoded(net::hmac_sha256_hex(root.master_key, job.meta.uid))},
                       {"ca.crt", encoded(root.authority.certificate)},
                       {"tls.crt", encoded(pair.certificate)},
                       {"tls.key", encoded(pair.private_key)}})}});
  const auto created = client.create(kube::types::kSecret, job.meta.ns, secret);
  if (created.ok() || created.error().code() == Code::kAlreadyExists) return ok();
  return created.error().in("creating the Secret of the job");
}

Result<net::KeyPair> operator_certificate(const TrustRoot& root, WallTime now) {
  net::CertificateRequest request;
  request.common_name = "rubato-operator";
  request.dns_names = {"rubato-operator"};
  request.not_before = now - kClockSkew;
  request.not_after = now + kCertificateLife;
  request.client = false;
  return net::issue_certificate(root.authority, request);
}

}  // namespace rubato::control
