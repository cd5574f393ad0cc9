#include "tests/unit/worker/collective/fleet.h"
#include "worker/collective/sockets.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <poll.h>
#include <sys/socket.h>

namespace rubato::worker {
namespace {

std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}
// As a kubelet does it: another file by the same name.
void replace(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text;
  std::filesystem::rename(path + ".new", path);
}

class TlsLinkNetworkTest : public ::testing::Test {
 protected:
  // Whether both sides have a link, or how the one that dials is refused.
  Status connect(TlsLinkNetwork& from, TlsLinkNetwork& to) {
    Status accepted = ok();
    std::thread accepting([&] {
      auto arrival = to.accept(soon());
      ASSERT_TRUE(arrival.ok());
      const auto link = (*arrival)->secure(soon(), {});
      if (!link.ok()) accepted = link.error();
    });
    const auto link = from.dial("127.0.0.1", to.port(), soon(), {});
    accepting.join();
    if (!link.ok()) return link.error();
    return accepted;
  }
  std::unique_ptr<TlsLinkNetwork> open(const JobSecret& secret) {
    return TlsLinkNetwork::open({.job_uid = "job", .secret_dir = secret.dir()}).value();
  }
};

TEST_F(TlsLinkNetworkTest, ARenewedSecretCountsForLinksThatAreMadeThen) {
  const JobSecret old("job"), fresh("job");  // each by an authority of its own
  const auto one = open(old), two = open(fresh);
  EXPECT_FALSE(connect(*one, *two).ok());

  const std::string both = read(old.dir() + "/ca.crt") + read(fresh.dir() + "/ca.crt");
  replace(old.dir() + "/ca.crt", both);
  replace(fresh.dir() + "/ca.crt", both);
  EXPECT_TRUE(connect(*one, *two).ok()) << "whose pod has the new one, and whose has not yet";

  replace(old.dir() + "/tls.key", read(fresh.dir() + "/tls.key"));
  EXPECT_TRUE(connect(*one, *two).ok()) << "half of it has come: what was before goes on";
  replace(old.dir() + "/tls.crt", read(fresh.dir() + "/tls.crt"));
  replace(old.dir() + "/ca.crt", read(fresh.dir() + "/ca.crt"));
  replace(fresh.dir() + "/ca.crt", read(fresh.dir() + "/ca.crt"));
  EXPECT_TRUE(connect(*one, *two).ok());
}

// It may have no place for us now, or be about to end: whoever dials tries again.
TEST_F(TlsLinkNetworkTest, APeerThatClosesInTheHandshakeHasNotRefusedUs) {
  const JobSecret secret("job");
  const auto network = open(secret);
  const Socket listener = listen_tcp("127.0.0.1", 0).value();
  std::thread closing([&] {
    std::array<char, 4096> hello{};
    pollfd wait{listener.fd(), POLLIN, 0};
    ::poll(&wait, 1, -1);
    const Socket peer(::accept(listener.fd(), nullptr, nullptr));
    EXPECT_GT(::recv(peer.fd(), hello.data(), hello.size(), 0), 0);
  });
  const auto link = network->dial("127.0.0.1", local_port(listener.fd()).value(), soon(), {});
  closing.join();
  EXPECT_EQ(link.error().code(), Code::kUnavailable) << link.error().to_string();
}

// Out of memory or descriptors for a moment, say; the files stay as they are.
TEST_F(TlsLinkNetworkTest, AFileThatCouldNotBeReadOnceIsReadAgain) {
  const JobSecret old("job"), fresh("job");  // each by an authority of its own
  const auto one = open(old), two = open(fresh);
  for (const char* name : {"/tls.key", "/ca.crt"})
    replace(old.dir() + name, read(fresh.dir() + name));
  const std::string renewed = old.dir() + "/tls.crt";
  replace(renewed, "not to be read");
  EXPECT_FALSE(connect(*one, *two).ok()) << "it has its old one";
  const auto time = std::filesystem::last_write_time(renewed);
  std::ofstream(renewed) << read(fresh.dir() + "/tls.crt");
  std::filesystem::last_write_time(renewed, time);
  EXPECT_TRUE(connect(*one, *two).ok());
}

}  // namespace
}  // namespace rubato::worker
