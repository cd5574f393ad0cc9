#include "tests/unit/worker/support/job_secret.h"

#include "common/net/certificates.h"

#include <cstdlib>
#include <fstream>

namespace rubato::worker {

namespace {
void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
}
}  // namespace

JobSecret::JobSecret(const std::string& job_uid) {
  std::string pattern = (std::filesystem::temp_directory_path() / "rubato-secret-XXXXXX").string();
  CHECK(::mkdtemp(pattern.data()) != nullptr);
  dir_ = pattern;
  const WallTime now = SystemClock().wall();
  const auto authority = net::make_authority("test", now - 1h, now + 24h);
  net::CertificateRequest request;
  request.common_name = job_uid;
  request.not_before = now - 1h;
  request.not_after = now + 24h;
  const auto pair = net::issue_certificate(authority.value(), request);
  write(dir_ / "tls.crt", pair.value().certificate);
  write(dir_ / "tls.key", pair.value().private_key);
  write(dir_ / "ca.crt", authority.value().certificate);
}

JobSecret::~JobSecret() {
  std::error_code ignored;
  std::filesystem::remove_all(dir_, ignored);
}

}  // namespace rubato::worker
