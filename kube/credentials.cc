#include "kube/credentials.h"

#include "common/files.h"
#include "common/net/certificates.h"

#include <mutex>

namespace rubato::kube {
namespace {

constexpr std::size_t kFileBytesMax = 4u << 20;

std::string stripped(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.pop_back();
  return text;
}

// A text that is read again when it is old. A file that cannot be read any more keeps its last
// text: rotation replaces files, and the next try comes soon.
class Source {
 public:
  Source(TextOrFile from, Duration age) : from_(std::move(from)), age_(age) {}
  Result<std::string> get(MonoTime now) {
    if (!from_.text.empty() || from_.file.empty()) return from_.text;
    if (have_ && now < read_at_ + age_) return text_;
    auto text = read_input(from_.file, kFileBytesMax);
    // Whatever the reason: a request fails by it, and must not seem to have found no object.
    if (!text.ok() && !have_) return Error(Code::kInvalid, text.error().what());
    if (text.ok()) text_ = std::move(text).value();
    have_ = true;
    read_at_ = now;
    return text_;
  }
  void drop() { read_at_ = MonoTime::min(); }

 private:
  TextOrFile from_;
  Duration age_;
  bool have_ = false;
  std::string text_;
  MonoTime read_at_{};
};

}  // namespace

struct Credentials::Impl {
  Impl(const Clock& the_clock, CredentialConfig the_config)
      : clock(the_clock),
        config(std::move(the_config)),
        authority(config.authority, kCertificateAge),
        certificate(config.certificate, kCertificateAge),
        private_key(config.private_key, kCertificateAge),
        token(config.token, kTokenFileAge) {}

  Status use_plugin(Credential& credential) {
    const WallTime now = clock.wall();
    if (!exec_status || (exec_expiry && now + kExpiryLeeway >= *exec_expiry)) {
      TRY(json::Value status, run_exec_plugin(*config.exec));
      exec_expiry.reset();
      // A time beyond what we can count (the year 2262) is as good as none.
      if (const auto end = parse_rfc3339(status["expirationTimestamp"].string_or("")); end.ok())
        exec_expiry = end.value();
      exec_status = std::move(status);
    }
    const json::Value& status = *exec_status;
    if (const std::string text = status["token"].string_or(""); !text.empty())
      credential.authorization = "Bearer " + text;
    credential.certificate = status["clientCertificateData"].string_or(credential.certificate);
    credential.private_key = status["clientKeyData"].string_or(credential.private_key);
    return ok();
  }

  const Clock& clock;
  CredentialConfig config;
  std::mutex mutex;
  Source authority;
  Source certificate;
  Source private_key;
  Source token;
  std::optional<json::Value> exec_status;
  std::optional<WallTime> exec_expiry;
};

Credentials::Credentials(const Clock& clock, CredentialConfig config)
    : impl_(std::make_unique<Impl>(clock, std::move(config))) {}
Credentials::~Credentials() = default;

Result<Credential> Credentials::get() {
  std::lock_guard lock(impl_->mutex);
  const MonoTime now = impl_->clock.now();
  Credential credential;
  TRY(credential.authority, impl_->authority.get(now));
  TRY(credential.certificate, impl_->certificate.get(now));
  TRY(credential.private_key, impl_->private_key.get(now));
  TRY(std::string token, impl_->token.get(now));
  token = stripped(std::move(token));
  const CredentialConfig& config = impl_->config;
  if (!token.empty()) {
    credential.authorization = "Bearer " + token;
  } else if (!config.username.empty()) {
    credential.authorization =
        "Basic " + net::base64_encode(config.username + ":" + config.password);
  } else if (config.exec) {
    TRY_OK(impl_->use_plugin(credential));
  }
  return credential;
}

void Credentials::drop() {
  std::lock_guard lock(impl_->mutex);
  impl_->token.drop();
  impl_->certificate.drop();
  impl_->private_key.drop();
  impl_->exec_status.reset();
}

}  // namespace rubato::kube
