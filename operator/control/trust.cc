#include "operator/control/trust.h"

#include "common/log.h"
#include "operator/control/metric_catalog.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace rubato::control {

namespace {

using json::Value;
constexpr const char* kLog = "trust";
constexpr const char* kTrustSecret = "rubato-operator-trust";
constexpr const char* kOperatorName = "rubato-operator";
constexpr auto kClockSkew = std::chrono::hours(1);
constexpr auto kLookRetry = 10s;

// When the certificate of `whose` ends.
Gauge& end_gauge(Metrics& metrics, const char* whose) {
  const std::string_view help = metric("rubato_certificate_not_after_timestamp_seconds").help;
  return metrics.gauge("rubato_certificate_not_after_timestamp_seconds", std::string(help),
                       {{"certificate", whose}});
}

WallTime end_of(const std::string& certificate) {
  const auto validity = net::certificate_validity(certificate);
  return validity.ok() ? validity->not_after : WallTime{};
}

Result<net::KeyPair> pair_of(const Value& data, const char* certificate, const char* key) {
  net::KeyPair pair;
  TRY(pair.certificate, net::base64_decode(data[certificate].string_or("")));
  TRY(pair.private_key, net::base64_decode(data[key].string_or("")));
  return pair;
}

std::vector<std::string> certificates_in(const std::string& text) {
  static constexpr std::string_view kEnd = "-----END CERTIFICATE-----\n";
  std::vector<std::string> out;
  for (std::size_t from = 0, end = 0; (end = text.find(kEnd, from)) != std::string::npos;) {
    out.push_back(text.substr(from, end + kEnd.size() - from));
    from = end + kEnd.size();
  }
  return out;
}

Result<TrustRoot> decode_root(const Value& secret) {
  const Value& data = secret["data"];
  TrustRoot root;
  const auto read = [&]() -> Status {
    TRY(const net::KeyPair authority, pair_of(data, "ca.crt", "ca.key"));
    TRY(root.authority, net::read_authority(authority));
    TRY(root.master_key, net::base64_decode(data["master-key"].string_or("")));
    if (root.master_key.empty()) return Error(Code::kInvalid, "master-key is empty");
    if (const std::string from = data["next-from"].string_or(""); !from.empty()) {
      TRY(const net::KeyPair next, pair_of(data, "next.crt", "next.key"));
      TRY(root.next, net::read_authority(next));
      TRY(const std::string text, net::base64_decode(from));
      TRY(root.next_from, parse_rfc3339(text));
    }
    TRY(const std::string former, net::base64_decode(data["former.crt"].string_or("")));
    root.former = certificates_in(former);
    return ok();
  };
  if (const Status status = read(); !status.ok()) {
    return Error(Code::kInvalid,
                 fmt::format("Secret {} cannot be used: {}; delete it to have it made anew",
                             kTrustSecret, status.error().what()));
  }
  return root;
}

Value encode_root(const TrustRoot& root, const std::string& ns) {
  Value data = Value::object({{"ca.crt", net::base64_encode(root.authority.certificate)},
                              {"ca.key", net::base64_encode(root.authority.private_key)},
                              {"master-key", net::base64_encode(root.master_key)}});
  if (root.next) {
    data.set("next.crt", net::base64_encode(root.next->certificate));
    data.set("next.key", net::base64_encode(root.next->private_key));
    data.set("next-from", net::base64_encode(to_rfc3339(root.next_from)));
  }
  std::string former;
  for (const std::string& certificate : root.former) former += certificate;
  if (!former.empty()) data.set("former.crt", net::base64_encode(former));
  return Value::object({{"apiVersion", "v1"},
                        {"kind", "Secret"},
                        {"metadata", Value::object({{"name", kTrustSecret}, {"namespace", ns}})},
                        {"type", "Opaque"},
                        {"data", std::move(data)}});
}

// `since`: from when on it is valid.
Result<net::KeyPair> own_authority(const CertificateTiming& timing, WallTime since, WallTime now) {
  return net::make_authority("rubato", since, now + timing.authority_life());
}

Result<TrustRoot> first_root(const std::optional<net::KeyPair>& given,
                             const CertificateTiming& timing, WallTime now) {
  TrustRoot root;
  if (given) {
    root.authority = *given;
  } else {
    TRY(root.authority, own_authority(timing, now - kClockSkew, now));
  }
  root.master_key = net::random_hex(32);
  return root;
}

}  // namespace

std::string TrustRoot::trusted() const {
  std::string all = authority.certificate;
  if (next) all += next->certificate;
  for (const std::string& certificate : former) all += certificate;
  return all;
}

std::string TrustRoot::digest() const {
  // Of the key, only that it is another one.
  return net::sha256_hex(trusted() + net::hmac_sha256_hex(master_key, "digest")).substr(0, 16);
}

Result<TrustRoot> brought_up_to_date(const TrustRoot& root,
                                     const std::optional<net::KeyPair>& given,
                                     const CertificateTiming& timing, WallTime now) {
  TrustRoot out = root;
  std::erase_if(out.former, [&](const auto& certificate) { return end_of(certificate) <= now; });
  const net::KeyPair& newest = out.next ? *out.next : out.authority;
  std::optional<net::KeyPair> other;
  if (given) {
    if (given->certificate != newest.certificate) other = given;
  } else {
    TRY(const net::Validity validity, net::certificate_validity(newest.certificate));
    // What somebody gave us once may be of any length.
    const Duration life =
        std::min<Duration>(timing.authority_life(), validity.not_after - validity.not_before);
    // One that was made while this clock was ahead is worth nothing to anybody until then.
    const bool is_early = now < validity.not_before;
    if (is_early || now >= validity.not_after - life / 3) {
      TRY(other, own_authority(timing, is_early ? now - kClockSkew : validity.not_before, now));
    }
  }
  if (other && other->certificate == out.authority.certificate) {
    out.next.reset();  // as it was before
  } else if (other) {
    if (out.next) out.former.push_back(out.next->certificate);
    out.next = std::move(other);
    out.next_from = now + timing.settle();
  }
  TRY(const net::Validity validity, net::certificate_validity(out.authority.certificate));
  const bool is_void = validity.not_after <= now || validity.not_before > now;
  if (out.next && (now >= out.next_from || is_void)) {
    if (!is_void) out.former.push_back(out.authority.certificate);
    out.authority = *std::exchange(out.next, std::nullopt);
  }
  const auto ends_first = [](const auto& a, const auto& b) { return end_of(a) < end_of(b); };
  while (out.former.size() > kFormerAuthoritiesMost)
    out.former.erase(std::ranges::min_element(out.former, ends_first));
  return out;
}

Result<net::KeyPair> issue(const TrustRoot& root, net::CertificateRequest request,
                           const CertificateTiming& timing, WallTime now) {
  TRY(const net::Validity authority, net::certificate_validity(root.authority.certificate));
  request.dns_names = {request.common_name};
  request.not_before = authority.not_before;
  request.not_after = std::min<WallTime>(now + timing.life, authority.not_after);
  return net::issue_certificate(root.authority, request);
}

bool is_renewal_due(WallTime not_after, const TrustRoot& root, const CertificateTiming& timing,
                    WallTime now) {
  if (now < not_after - timing.life / 3) return false;
  const WallTime would_end =
      std::min<WallTime>(now + timing.life, end_of(root.authority.certificate));
  return would_end > not_after + timing.life / 12;
}

Trust::Trust(Dependencies dependencies)
    : d_(std::move(dependencies)),
      authority_end_(end_gauge(d_.metrics, "authority")),
      own_end_(end_gauge(d_.metrics, "operator")) {}

std::shared_ptr<const TrustRoot> Trust::root() const {
  const std::lock_guard lock(mutex_);
  return root_;
}

net::TlsConfig Trust::tls() const {
  const std::lock_guard lock(mutex_);
  return tls_;
}

Result<std::optional<net::KeyPair>> Trust::given_authority() const {
  if (d_.authority_secret.empty()) return std::optional<net::KeyPair>();
  const std::string what = "the authority in Secret " + d_.ns + "/" + d_.authority_secret;
  const auto secret = d_.client.get(kube::types::kSecret, {d_.ns, d_.authority_secret});
  if (!secret.ok()) return secret.error().in(what);
  const auto texts = pair_of((*secret)["data"], "tls.crt", "tls.key");
  if (!texts.ok()) return texts.error().in(what);
  auto authority = net::read_authority(*texts);
  if (!authority.ok()) return authority.error().in(what);
  TRY(const net::Validity validity, net::certificate_validity(authority->certificate));
  const WallTime now = d_.executor.clock().wall();
  if (now < validity.not_before || now >= validity.not_after) {
    return Error(Code::kInvalid, fmt::format("{} is valid from {} to {}, and it is {}", what,
                                             to_rfc3339(validity.not_before),
                                             to_rfc3339(validity.not_after), to_rfc3339(now)));
  }
  return std::optional(std::move(*authority));
}

Status Trust::open() {
  auto found = d_.client.get(kube::types::kSecret, {d_.ns, kTrustSecret});
  if (!found.ok()) {
    if (found.error().code() != Code::kNotFound) return found.error().in("reading the trust root");
    TRY(const auto given, given_authority());
    TRY(const TrustRoot root, first_root(given, d_.timing, d_.executor.clock().wall()));
    found = d_.client.create(kube::types::kSecret, d_.ns, encode_root(root, d_.ns));
    if (!found.ok()) {
      if (found.error().code() != Code::kAlreadyExists)
        return found.error().in("creating the trust root");
      found = d_.client.get(kube::types::kSecret, {d_.ns, kTrustSecret});
      if (!found.ok()) return found.error().in("reading the trust root");
    }
  }
  TRY(TrustRoot root, decode_root(*found));
  return adopt(std::move(root));
}

Task Trust::follow(std::function<bool()> leads) {
  return d_.executor.spawn("trust", [this, leads = std::move(leads)](const std::stop_token& stop) {
    Duration wait = d_.timing.look();
    while (d_.executor.sleep_for(wait, stop)) {
      const Status looked = look(leads());
      if (!looked.ok()) LOG_WARNING(kLog, "{}; what stands goes on", looked.error().to_string());
      wait = looked.ok() ? d_.timing.look() : std::min<Duration>(kLookRetry, d_.timing.look());
    }
  });
}

// Somebody may delete the Secret to have it made anew; so the leader makes it.
Status Trust::look(bool leads) {
  const auto found = d_.client.get(kube::types::kSecret, {d_.ns, kTrustSecret});
  if (!found.ok()) {
    if (found.error().code() == Code::kNotFound && leads) return open();
    return found.error().in("reading the trust root");
  }
  TRY(TrustRoot root, decode_root(*found));
  const Status kept = leads ? keep_up_to_date(*found, root) : ok();
  TRY_OK(adopt(std::move(root)));
  return kept;
}

// While the authority that we are given cannot be read, none takes its place.
Status Trust::keep_up_to_date(const Value& secret, TrustRoot& root) {
  TRY(const auto given, given_authority());
  TRY(TrustRoot wanted, brought_up_to_date(root, given, d_.timing, d_.executor.clock().wall()));
  if (wanted == root) return ok();
  Value object = encode_root(wanted, d_.ns);
  object.at("metadata").set("resourceVersion", kube::resource_version_of(secret));
  const auto written = d_.client.update(kube::types::kSecret, object);
  if (!written.ok()) return written.error().in("writing the trust root");
  LOG_INFO(kLog, "{}",
           wanted.next
               ? fmt::format("another authority will sign from {} on", to_rfc3339(wanted.next_from))
               : "the authorities are others");
  root = std::move(wanted);
  return ok();
}

Status Trust::adopt(TrustRoot root) {
  TRY_OK(renew_own(root));
  authority_end_.set(seconds_since_epoch(end_of(root.authority.certificate)));
  const std::lock_guard lock(mutex_);
  root_ = std::make_shared<const TrustRoot>(std::move(root));
  return ok();
}

Status Trust::renew_own(const TrustRoot& root) {
  const WallTime now = d_.executor.clock().wall();
  const std::string digest = root.digest();
  if (digest == own_digest_ && !is_renewal_due(own_not_after_, root, d_.timing, now)) return ok();
  net::CertificateRequest request;
  request.common_name = kOperatorName;
  request.client = false;
  TRY(const net::KeyPair pair, issue(root, request, d_.timing, now));
  net::TlsConfig tls;
  tls.certificate = pair.certificate;
  tls.private_key = pair.private_key;
  tls.authority = root.trusted();
  tls.require_peer_certificate = true;
  own_not_after_ = end_of(pair.certificate);
  own_digest_ = digest;
  own_end_.set(seconds_since_epoch(own_not_after_));
  {
    const std::lock_guard lock(mutex_);
    tls_ = tls;
  }
  d_.renewed(root.master_key, tls);
  return ok();
}

}  // namespace rubato::control
