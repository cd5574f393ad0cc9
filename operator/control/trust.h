// The trust domain of an installation: the authority that signs what the operator and the workers
// of its jobs show each other, and the key that their tokens are made with.
//
// It stands in the Secret "rubato-operator-trust", which the first replica makes and the leader
// keeps up to date. The authority is the operator's own, or one that somebody keeps in a Secret of
// type kubernetes.io/tls (cert-manager, say). Another authority comes in two steps, so that nobody
// is cut off: from the moment it is seen all are told to trust it, and CertificateTiming::settle
// later, when the Secrets of jobs have reached the pods, it begins to sign. The one before is
// trusted until it ends by itself.
#pragma once

#include "common/clock.h"
#include "common/executor.h"
#include "common/metrics.h"
#include "common/net/certificates.h"
#include "common/net/channel.h"
#include "kube/client.h"

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace rubato::control {

constexpr std::size_t kFormerAuthoritiesMost = 4;  // beyond: who ends first is trusted no more

struct CertificateTiming {
  Duration life = std::chrono::hours(24 * 90);  // of a certificate; renewed after two thirds of it
  Duration authority_life() const { return 10 * life; }  // of one that we make
  Duration settle() const { return std::min<Duration>(std::chrono::hours(1), life / 6); }
  Duration look() const { return std::min<Duration>(std::chrono::minutes(1), life / 12); }
};

struct TrustRoot {
  net::KeyPair authority;            // signs
  std::optional<net::KeyPair> next;  // will sign, from then on:
  WallTime next_from{};
  std::vector<std::string> former;  // certificates of those that have signed
  std::string master_key;

  std::string trusted() const;  // all of them, PEM, for those who verify
  // Another one where what jobs hold is to be made anew.
  std::string digest() const;
  bool operator==(const TrustRoot&) const = default;
};

// The trust root as it should be now, `given` being the authority that somebody keeps for us.
// Equal to `root` when there is nothing to do.
Result<TrustRoot> brought_up_to_date(const TrustRoot& root,
                                     const std::optional<net::KeyPair>& given,
                                     const CertificateTiming& timing, WallTime now);

// A certificate for `request.common_name` by `root`, for timing.life or as long as its authority
// lasts. It is valid since that began: a clock that is ahead must not make one that is not valid
// yet.
Result<net::KeyPair> issue(const TrustRoot& root, net::CertificateRequest request,
                           const CertificateTiming& timing, WallTime now);
// A new one would last longer, and it is time for it.
bool is_renewal_due(WallTime not_after, const TrustRoot& root, const CertificateTiming& timing,
                    WallTime now);

// The trust root as this replica knows it. Thread-safe.
class Trust {
 public:
  struct Dependencies {
    Executor& executor;
    kube::Client& client;
    Metrics& metrics;
    std::string ns;
    std::string authority_secret;  // in `ns`; empty: an authority of our own
    CertificateTiming timing;
    // The operator's own certificate is another, or whom it trusts. From the task of follow().
    std::function<void(const std::string& master_key, const net::TlsConfig& tls)> renewed;
  };
  explicit Trust(Dependencies dependencies);

  // Reads the Secret, or makes it: the first replica that starts wins, the others read what it
  // wrote. kNotFound, kInvalid: authority_secret is not there or cannot be used.
  Status open();
  // Looks every timing.look() whether something is to be renewed; who leads writes it down. Ends
  // with the task.
  [[nodiscard]] Task follow(std::function<bool()> leads);

  std::shared_ptr<const TrustRoot> root() const;
  net::TlsConfig tls() const;  // what the operator shows to agents, by the name "rubato-operator"
  const CertificateTiming& timing() const { return d_.timing; }

 private:
  Result<std::optional<net::KeyPair>> given_authority() const;
  Status look(bool leads);
  Status keep_up_to_date(const json::Value& secret, TrustRoot& root);
  Status adopt(TrustRoot root);
  Status renew_own(const TrustRoot& root);

  Dependencies d_;
  Gauge& authority_end_;
  Gauge& own_end_;
  mutable std::mutex mutex_;
  std::shared_ptr<const TrustRoot> root_;
  net::TlsConfig tls_;
  WallTime own_not_after_{};
  std::string own_digest_;  // of the root that tls_ was made by
};

}  // namespace rubato::control
