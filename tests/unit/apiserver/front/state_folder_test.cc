#include "apiserver/front/state_folder.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace rubato::apiserver {
namespace {

constexpr WallTime kNow{std::chrono::seconds(1'800'000'000)};

class WallClock : public Clock {
 public:
  explicit WallClock(WallTime wall) : wall_(wall) {}
  MonoTime now() const override { return {}; }
  WallTime wall() const override { return wall_; }

 private:
  WallTime wall_;
};

class StateFolderTest : public ::testing::Test {
 protected:
  StateFolderTest() {
    char pattern[] = "/tmp/rubato-folder-XXXXXX";
    path_ = ::mkdtemp(pattern);
  }
  ~StateFolderTest() override { std::filesystem::remove_all(path_); }
  struct Pairs {
    net::KeyPair authority, server, agent_client;
    std::string token;
  };
  Pairs open_at(WallTime wall) {
    const auto folder = StateFolder::open(path_, WallClock(wall), "127.0.0.1").value();
    return {folder->authority(), folder->server(), folder->agent_client(), folder->token()};
  }
  static bool is_valid_at(const net::KeyPair& pair, WallTime wall) {
    const auto validity = net::certificate_validity(pair.certificate).value();
    return validity.not_before <= wall && wall <= validity.not_after;
  }
  std::string path_;
};

TEST_F(StateFolderTest, WhatIsValidIsKept) {
  const Pairs first = open_at(kNow);
  const Pairs again = open_at(kNow + 24h * 365);
  EXPECT_EQ(again.authority, first.authority);
  EXPECT_EQ(again.server, first.server);
  EXPECT_EQ(again.agent_client, first.agent_client);
  EXPECT_EQ(again.token, first.token);
}

TEST_F(StateFolderTest, WhatAClockThatWasAheadMadeIsMadeAnew) {
  const Pairs ahead = open_at(kNow + 12h);
  const Pairs now = open_at(kNow);
  EXPECT_NE(now.authority, ahead.authority);
  for (const net::KeyPair* pair : {&now.authority, &now.server, &now.agent_client})
    EXPECT_TRUE(is_valid_at(*pair, kNow));
  EXPECT_EQ(now.token, ahead.token);
  const Pairs late = open_at(kNow + 24h * 365 * 11);
  for (const net::KeyPair* pair : {&late.authority, &late.server, &late.agent_client})
    EXPECT_TRUE(is_valid_at(*pair, kNow + 24h * 365 * 11));
}

TEST_F(StateFolderTest, AnAuthorityThatStaysSignsWhatIsMadeAnew) {
  const Pairs first = open_at(kNow);
  net::CertificateRequest ended;
  ended.common_name = "rubato-apiserver";
  ended.not_before = kNow - 48h;
  ended.not_after = kNow - 24h;
  const net::KeyPair old = net::issue_certificate(first.authority, ended).value();
  std::ofstream(path_ + "/server.crt") << old.certificate;
  std::ofstream(path_ + "/server.key") << old.private_key;
  const Pairs again = open_at(kNow);
  EXPECT_EQ(again.authority, first.authority);
  EXPECT_EQ(again.agent_client, first.agent_client);
  EXPECT_NE(again.server, old);
  EXPECT_TRUE(is_valid_at(again.server, kNow));
}

// Interrupted between the authority and what it signs: the old ones would fit no client.
TEST_F(StateFolderTest, AnotherAuthoritySignsAllAnew) {
  const Pairs first = open_at(kNow);
  std::filesystem::remove(path_ + "/ca.crt");
  const Pairs again = open_at(kNow);
  EXPECT_NE(again.authority, first.authority);
  EXPECT_NE(again.server, first.server);
  EXPECT_NE(again.agent_client, first.agent_client);
}

}  // namespace
}  // namespace rubato::apiserver
