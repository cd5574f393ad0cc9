#include "operator/control/trust.h"

#include "apiserver/memory/memory_client.h"
#include "common/testing/sim_executor.h"
#include "fixtures.h"
#include "operator/api/codec.h"
#include "operator/api/crd.h"
#include "operator/api/resources.h"
#include "operator/control/job_secret.h"
#include "operator/control/worker_pod.h"
#include "tests/unit/common/net/long_lived_authority.h"

namespace rubato::control {
namespace {

using std::chrono::hours;
const WallTime kToday = WallTime(std::chrono::seconds(1'800'000'000));
const CertificateTiming kTiming{.life = hours(90)};

net::KeyPair authority(const std::string& name, WallTime from = kToday,
                       Duration life = hours(900)) {
  return net::read_authority(net::make_authority(name, from, from + life).value()).value();
}
TrustRoot root_of(const net::KeyPair& authority) {
  return {.authority = authority, .master_key = "key"};
}
TrustRoot updated(const TrustRoot& root, const std::optional<net::KeyPair>& given, WallTime now) {
  return brought_up_to_date(root, given, kTiming, now).value();
}
WallTime end_of(const net::KeyPair& pair) {
  return net::certificate_validity(pair.certificate)->not_after;
}

TEST(TrustRoot, AnotherAuthorityIsTrustedFirstAndSignsLater) {
  const net::KeyPair old = authority("old"), fresh = authority("fresh");
  const TrustRoot before = root_of(old);
  EXPECT_EQ(updated(before, old, kToday).digest(), before.digest()) << "nothing to do";

  const TrustRoot told = updated(before, fresh, kToday);
  EXPECT_EQ(told.authority.certificate, old.certificate);
  EXPECT_EQ(told.trusted(), old.certificate + fresh.certificate);
  EXPECT_NE(told.digest(), before.digest()) << "all jobs are told";
  EXPECT_EQ(updated(told, fresh, kToday + kTiming.settle() - 1s).digest(), told.digest());

  const TrustRoot signs = updated(told, fresh, kToday + kTiming.settle());
  EXPECT_EQ(signs.authority.certificate, fresh.certificate);
  EXPECT_EQ(signs.trusted(), fresh.certificate + old.certificate);
  EXPECT_NE(signs.digest(), told.digest()) << "all jobs get certificates by the new one";

  const TrustRoot alone = updated(signs, fresh, end_of(old));
  EXPECT_EQ(alone.trusted(), fresh.certificate);
}

TEST(TrustRoot, WhoGoesBackBeforeItCountsChangesNothing) {
  const net::KeyPair old = authority("old"), fresh = authority("fresh");
  const TrustRoot told = updated(root_of(old), fresh, kToday);
  EXPECT_EQ(updated(told, old, kToday + 1s).digest(), root_of(old).digest());
}

TEST(TrustRoot, AnAuthorityThatHasEndedIsReplacedAtOnce) {
  const net::KeyPair old = authority("old", kToday, 1h), fresh = authority("fresh");
  const TrustRoot root = updated(root_of(old), fresh, kToday + 2h);
  EXPECT_EQ(root.trusted(), fresh.certificate);
}

// The clock was ahead when it was made: until then nobody would take what it signs.
TEST(TrustRoot, AnAuthorityThatIsNotValidYetIsReplacedAtOnce) {
  const TrustRoot root = updated(root_of(authority("rubato", kToday + 8h)), std::nullopt, kToday);
  EXPECT_LE(net::certificate_validity(root.authority.certificate)->not_before, kToday);
  EXPECT_EQ(root.trusted(), root.authority.certificate);
}

TEST(TrustRoot, HowManyHaveSignedIsBounded) {
  TrustRoot root = root_of(authority("0"));
  WallTime now = kToday;
  for (int i = 1; i < 10; ++i) {
    const net::KeyPair next = authority(std::to_string(i), kToday, hours(900 + i));
    root = updated(updated(root, next, now), next, now + kTiming.settle());
    now += kTiming.settle();
  }
  EXPECT_EQ(root.former.size(), kFormerAuthoritiesMost);
}

TEST(TrustRoot, OursIsRenewedAfterTwoThirdsOfItsLife) {
  const net::KeyPair ours = authority("rubato");
  const TrustRoot root = root_of(ours);
  EXPECT_EQ(updated(root, {}, kToday + hours(599)).digest(), root.digest());
  const TrustRoot renewed = updated(root, {}, kToday + hours(601));
  ASSERT_TRUE(renewed.next);
  EXPECT_GE(end_of(*renewed.next), kToday + hours(601) + kTiming.authority_life());
  EXPECT_EQ(net::certificate_validity(renewed.next->certificate)->not_before, kToday)
      << "a clock that is ahead makes none that is not valid yet";
  EXPECT_EQ(updated(renewed, {}, kToday + hours(601)).digest(), renewed.digest());
}

TEST(TrustRoot, RenewalIsDueInTheLastThirdAndOnlyWhereItHelps) {
  const TrustRoot root = root_of(authority("rubato", kToday, hours(100)));
  EXPECT_FALSE(is_renewal_due(kToday + hours(90), root, kTiming, kToday + hours(59)));
  EXPECT_TRUE(is_renewal_due(kToday + hours(90), root, kTiming, kToday + hours(61)));
  EXPECT_FALSE(is_renewal_due(kToday + hours(100), root, kTiming, kToday + hours(99)))
      << "its authority ends then, too";
  const net::KeyPair issued =
      issue(root, {.common_name = "a"}, kTiming, kToday + hours(61)).value();
  EXPECT_EQ(end_of(issued), kToday + hours(100));
}

// Replicas and the API server, in virtual time.
class TrustTest : public ::testing::Test {
 protected:
  TrustTest() {
    const json::Value ns =
        parse(R"({"apiVersion":"v1","kind":"Namespace","metadata":{"name":"ns"}})");
    CHECK(client_.create(kube::types::kNamespace, "", ns).ok());
  }
  Trust make(const std::string& secret = "") {
    return Trust({process_, client_, metrics_, "ns", secret, timing_,
                  [this](const std::string&, const net::TlsConfig&) { ++renewals_; }});
  }
  // What Secret "given" in the operator's namespace holds.
  void give(const net::KeyPair& pair) {
    const json::Value secret = json::Value::object(
        {{"apiVersion", "v1"},
         {"kind", "Secret"},
         {"metadata", json::Value::object({{"name", "given"}, {"namespace", "ns"}})},
         {"data", json::Value::object({{"tls.crt", net::base64_encode(pair.certificate)},
                                       {"tls.key", net::base64_encode(pair.private_key)}})}});
    const bool is_first = client_.create(kube::types::kSecret, "ns", secret).ok();
    if (is_first) return;
    const auto written = client_.update(kube::types::kSecret, secret);
    EXPECT_TRUE(written.ok()) << written.error().to_string();
  }
  WallTime wall() { return process_.clock().wall(); }
  net::KeyPair fresh(const std::string& name) { return authority(name, wall()); }

  testing::SimExecutor sim_{1};
  testing::SimProcess& process_ = sim_.process("operator");
  kube::MemoryServer server_{process_.clock()};
  kube::MemoryClient memory_{server_, process_};
  kube::Client& client_ = memory_;
  Metrics metrics_;
  CertificateTiming timing_ = kTiming;
  int renewals_ = 0;
};

TEST_F(TrustTest, TheFirstReplicaMakesItAndTheOthersReadIt) {
  Trust first = make(), second = make();
  const Status opened = first.open();
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  ASSERT_TRUE(second.open().ok());
  EXPECT_EQ(first.root()->digest(), second.root()->digest());
  EXPECT_EQ(first.root()->authority.private_key, second.root()->authority.private_key);
  EXPECT_NE(first.tls().certificate, second.tls().certificate);
}

TEST_F(TrustTest, WithoutTheAuthorityThatItIsGivenItDoesNotBegin) {
  EXPECT_EQ(make("given").open().error().code(), Code::kNotFound);
  const net::KeyPair one = fresh("one"), two = fresh("two");
  give({one.certificate, two.private_key});
  const Status mixed = make("given").open();
  EXPECT_NE(mixed.error().what().find("ns/given"), std::string::npos) << mixed.error().what();
  give(issue(root_of(one), {.common_name = "leaf"}, kTiming, wall()).value());
  EXPECT_EQ(make("given").open().error().code(), Code::kInvalid) << "it may sign nothing";
  for (const Duration from : {-hours(2), hours(1)}) {
    give(authority("not now", wall() + from, 1h));
    EXPECT_NE(make("given").open().error().what().find("is valid from"), std::string::npos);
  }
  give(one);
  EXPECT_TRUE(make("given").open().ok());
}

TEST_F(TrustTest, AnAuthorityWithoutAnEndIsTaken) {
  give(net::long_lived_authority(wall() - 1h, "99991231235959Z"));
  Trust trust = make("given");
  const Status opened = trust.open();
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  EXPECT_EQ(net::certificate_validity(trust.tls().certificate)->not_after,
            std::chrono::floor<std::chrono::seconds>(wall() + kTiming.life));
}

TEST_F(TrustTest, TheLeaderWritesDownAnotherAuthorityAndTheOthersFollow) {
  const net::KeyPair one = fresh("one"), two = fresh("two");
  give(one);
  Trust leader = make("given"), standby = make("given");
  ASSERT_TRUE(leader.open().ok() && standby.open().ok());
  const Task led = leader.follow([] { return true; });
  const Task followed = standby.follow([] { return false; });
  give(two);
  sim_.run_for(3min);
  EXPECT_EQ(standby.root()->trusted(), one.certificate + two.certificate);
  give({"nonsense", "too"});  // what stands goes on
  sim_.run_for(5min);
  EXPECT_EQ(standby.root()->trusted(), one.certificate + two.certificate);
  give(two);
  sim_.run_for(kTiming.settle());
  EXPECT_EQ(standby.root()->authority.certificate, two.certificate);
  EXPECT_EQ(standby.tls().authority, two.certificate + one.certificate);
  EXPECT_EQ(leader.root()->digest(), standby.root()->digest());
}

TEST_F(TrustTest, TheOperatorsCertificateIsRenewed) {
  timing_.life = 1h;
  Trust trust = make();
  ASSERT_TRUE(trust.open().ok());
  const Task followed = trust.follow([] { return true; });
  const std::string before = trust.tls().certificate;
  const int first = renewals_;
  sim_.run_for(39min);
  EXPECT_EQ(trust.tls().certificate, before);
  sim_.run_for(2min);
  EXPECT_NE(trust.tls().certificate, before);
  EXPECT_EQ(renewals_, first + 1);
  sim_.run_for(12h);  // an authority of ours lasts ten lives
  EXPECT_GT(net::certificate_validity(trust.tls().certificate)->not_after, wall());
  EXPECT_LE(renewals_, first + 25);
}

TEST_F(TrustTest, ASecretThatIsDeletedIsMadeAnew) {
  Trust trust = make();
  ASSERT_TRUE(trust.open().ok());
  const Task followed = trust.follow([] { return true; });
  const std::string before = trust.root()->digest();
  ASSERT_TRUE(client_.remove(kube::types::kSecret, {"ns", "rubato-operator-trust"}).ok());
  sim_.run_for(2min);
  EXPECT_NE(trust.root()->digest(), before);
}

// As reconciles of a job do it.
class JobSecretTest : public TrustTest {
 protected:
  // The owner: without it the Secret would be collected.
  JobSecretTest() {
    for (const api::Kind& kind : api::kinds())
      CHECK(client_.create(kube::types::kCustomResourceDefinition, "", api::crd(kind)).ok());
    const auto object = control::job(1, 2);
    const json::Value manifest = json::Value::object(
        {{"apiVersion", api::kApiVersion},
         {"kind", "TrainingJob"},
         {"metadata", json::Value::object({{"name", "job"}, {"namespace", "ns"}})},
         {"spec", api::encode(object->job.spec)}});
    const auto made = client_.create(api::kTrainingJob, "ns", manifest);
    CHECK(made.ok());
    uid_ = kube::uid_of(*made);
  }
  api::TrainingJob job() {
    api::TrainingJob made = control::job(1, 2)->job;
    made.meta.uid = uid_;
    made.status.credentials = held_;
    return made;
  }
  // True when the Secret was written.
  bool reconcile(const Trust& trust, bool first = false) {
    const bool due = are_credentials_due(job(), *trust.root(), kTiming, wall());
    if (!due && !first) return false;
    const auto written = write_job_secret(client_, job(), *trust.root(), kTiming, wall(), due);
    EXPECT_TRUE(written.ok()) << written.error().to_string();
    if (!written.ok() || !written->credentials) return false;
    EXPECT_TRUE(written->renewed.ok());
    held_ = written->credentials;
    return true;
  }
  std::string in_secret(const char* name) {
    const auto secret = client_.get(kube::types::kSecret, {"ns", job_secret_name(job())}, "");
    EXPECT_TRUE(secret.ok()) << secret.error().to_string();
    if (!secret.ok()) return "";
    return net::base64_decode((*secret)["data"][name].string_or("")).value_or("");
  }

  std::string uid_;
  std::optional<api::Credentials> held_;
};

TEST_F(JobSecretTest, ItIsRenewedInTheLastThirdAndWithTheTrustRoot) {
  const net::KeyPair one = fresh("one"), two = fresh("two");
  give(one);
  Trust trust = make("given");
  ASSERT_TRUE(trust.open().ok());
  const Task followed = trust.follow([] { return true; });
  EXPECT_TRUE(reconcile(trust, true));
  const std::string first = in_secret("tls.crt");
  EXPECT_EQ(held_->not_after, net::certificate_validity(first)->not_after);
  EXPECT_FALSE(reconcile(trust, true)) << "all its pods went, and the Secret is there";
  sim_.run_for(hours(61));
  EXPECT_TRUE(reconcile(trust));
  EXPECT_NE(in_secret("tls.crt"), first);
  EXPECT_FALSE(reconcile(trust));
  give(two);
  sim_.run_for(2min);
  EXPECT_TRUE(reconcile(trust));
  EXPECT_EQ(in_secret("ca.crt"), one.certificate + two.certificate);
  EXPECT_FALSE(reconcile(trust));
  sim_.run_for(kTiming.settle());
  EXPECT_TRUE(reconcile(trust));
  EXPECT_EQ(in_secret("ca.crt"), two.certificate + one.certificate);
}

TEST_F(JobSecretTest, OneThatSomebodyDeletedIsMadeForTheNextPods) {
  Trust trust = make();
  ASSERT_TRUE(trust.open().ok());
  EXPECT_TRUE(reconcile(trust, true));
  ASSERT_TRUE(client_.remove(kube::types::kSecret, {"ns", job_secret_name(job())}).ok());
  EXPECT_TRUE(reconcile(trust, true));
  EXPECT_FALSE(in_secret("token").empty());
}

// Its end may be taken back by hand: its status says then that it has no credentials.
TEST_F(JobSecretTest, OfAJobThatIsOverItIsEmptyAndFilledForOneThatGoesOn) {
  Trust trust = make();
  ASSERT_TRUE(trust.open().ok());
  EXPECT_TRUE(empty_job_secret(client_, job()).ok()) << "there is none";
  EXPECT_TRUE(reconcile(trust, true));
  ASSERT_TRUE(empty_job_secret(client_, job()).ok());
  const auto secret = client_.get(kube::types::kSecret, {"ns", job_secret_name(job())}, "");
  ASSERT_TRUE(secret.ok()) << "it goes with its job";
  EXPECT_EQ((*secret)["data"].size(), 0U);
  EXPECT_EQ((*secret)["metadata"]["ownerReferences"][0]["uid"].string_or(""), uid_);
  held_.reset();
  EXPECT_TRUE(reconcile(trust));
  EXPECT_FALSE(in_secret("token").empty());
}

TEST_F(JobSecretTest, ATrialMakesNone) {
  Trust trust = make();
  ASSERT_TRUE(trust.open().ok());
  const auto is_there = [&] {
    return client_.get(kube::types::kSecret, {"ns", job_secret_name(job())}, "").ok();
  };
  EXPECT_TRUE(try_job_secret(client_, job(), *trust.root()).ok());
  EXPECT_FALSE(is_there());
  EXPECT_TRUE(reconcile(trust, true));
  EXPECT_TRUE(try_job_secret(client_, job(), *trust.root()).ok()) << "it is there";
}

// A quota that this very Secret fills refuses who makes one, whether it is there or not.
TEST_F(JobSecretTest, AFullQuotaIsNoReasonWhereItIsThere) {
  struct FullQuota : kube::FaultHook {
    std::optional<Error> before(const kube::Operation& operation) override {
      if (operation.verb != kube::Verb::kCreate) return std::nullopt;
      return Error(Code::kDenied, "exceeded quota: count/secrets").set_reason("Forbidden");
    }
    std::optional<Error> after(const kube::Operation&) override { return std::nullopt; }
  } full;
  kube::MemoryClient refused(server_, process_, &full);
  Trust trust = make();
  ASSERT_TRUE(trust.open().ok());
  const auto write = [&](bool replace) {
    return write_job_secret(refused, job(), *trust.root(), kTiming, wall(), replace);
  };
  EXPECT_FALSE(write(true).ok()) << "there is none";
  EXPECT_TRUE(reconcile(trust, true));
  const std::string first = in_secret("tls.crt");
  const auto looked = write(false);
  ASSERT_TRUE(looked.ok());
  EXPECT_FALSE(looked->credentials);
  EXPECT_EQ(in_secret("tls.crt"), first) << "it was looked for only";
  const auto renewed = write(true);
  ASSERT_TRUE(renewed.ok());
  EXPECT_TRUE(renewed->credentials);
  EXPECT_NE(in_secret("tls.crt"), first);
}

TEST_F(JobSecretTest, OneThatCannotBeReplacedStaysAndSaysSo) {
  Trust trust = make();
  ASSERT_TRUE(trust.open().ok());
  EXPECT_TRUE(reconcile(trust, true));
  auto secret = client_.get(kube::types::kSecret, {"ns", job_secret_name(job())}, "");
  secret->set("immutable", true);
  ASSERT_TRUE(client_.update(kube::types::kSecret, *secret).ok());
  for (const bool is_of_an_earlier_build : {false, true}) {
    if (is_of_an_earlier_build) held_.reset();
    const auto written = write_job_secret(client_, job(), *trust.root(), kTiming, wall(), true);
    ASSERT_TRUE(written.ok()) << "pods of it may be made";
    EXPECT_FALSE(written->credentials);
    EXPECT_NE(written->renewed.error().what().find("renewing Secret"), std::string::npos);
  }
}

// It may not update Secrets: whether there is one it learns by making it.
TEST_F(JobSecretTest, WithoutTheRightToReplaceItTheFirstOneIsMadeAllTheSame) {
  struct NoUpdates : kube::FaultHook {
    std::optional<Error> before(const kube::Operation& operation) override {
      const auto refusal = [](const char* why) {
        return Error(Code::kDenied, why).set_reason("Forbidden");
      };
      if (operation.verb == kube::Verb::kUpdate) return refusal("may not update");
      if (operation.verb == kube::Verb::kCreate && is_full) return refusal("exceeded quota");
      return std::nullopt;
    }
    std::optional<Error> after(const kube::Operation&) override { return std::nullopt; }
    bool is_full = true;
  } no_updates;
  kube::MemoryClient refused(server_, process_, &no_updates);
  Trust trust = make();
  ASSERT_TRUE(trust.open().ok());
  const auto kept = write_job_secret(refused, job(), *trust.root(), kTiming, wall(), true);
  ASSERT_FALSE(kept.ok());
  EXPECT_NE(kept.error().what().find("exceeded quota"), std::string::npos) << kept.error().what();
  no_updates.is_full = false;
  const auto made = write_job_secret(refused, job(), *trust.root(), kTiming, wall(), true);
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made->credentials);
  const auto again = write_job_secret(refused, job(), *trust.root(), kTiming, wall(), true);
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->credentials);
  EXPECT_FALSE(again->renewed.ok());
}

}  // namespace
}  // namespace rubato::control
