#include "operator/api/packed_members.h"

#include "common/net/certificates.h"

#include <gtest/gtest.h>

namespace rubato::api {
namespace {

// Names as on a real cluster, uids as random as there.
MembershipMember worker(int ordinal, int slot = 0) {
  const std::string hex = net::sha256_hex(std::to_string(ordinal));
  const auto part = [&](std::size_t from, std::size_t count) { return hex.substr(from, count); };
  const std::string uid =
      part(0, 8) + "-" + part(8, 4) + "-" + part(12, 4) + "-" + part(16, 4) + "-" + part(20, 12);
  return {"llama-3-70b-w" + std::to_string(ordinal),
          uid,
          "gpu-" + part(32, 8) + ".eu-west-1.compute.internal",
          slot,
          1 + ordinal % 3,
          "NVIDIA-H100-80GB-HBM3"};
}

Members job_of(int size) {
  Members members;
  for (int i = 0; i < size; ++i) members.members.push_back(worker(i));
  return members;
}

TEST(PackedMembersTest, ComesBackAsItWas) {
  Members members = job_of(100);
  members.previous = members.members;
  members.previous.erase(members.previous.begin() + 7);
  members.previous.push_back(worker(200));  // left
  members.previous[3].node = "elsewhere";   // the same worker, with another word of it
  members.members[0].pod = "quote \" blank 'ä";
  const auto back = unpack(pack(members));
  ASSERT_TRUE(back.ok()) << back.error().what();
  EXPECT_EQ(*back, members);
  EXPECT_EQ(unpack(pack({})).value(), Members{});
}

// All uids differ and all names of nodes are random; one generation of 4 000 follows another.
TEST(PackedMembersTest, FourThousandMembersAreSmall) {
  Members members = job_of(4000);
  for (int i = 1; i < 4001; ++i) members.previous.push_back(worker(i));
  EXPECT_LT(pack(members).size(), 300'000u);
  EXPECT_EQ(unpack(pack(members)).value(), members);
}

TEST(PackedMembersTest, WhatIsNotPackedIsNamedAsThat) {
  const auto why = [](const std::string& text) { return unpack(text).error().what(); };
  const std::string good = pack(job_of(70));
  EXPECT_NE(why("not base64!").find("packed members: "), std::string::npos);
  EXPECT_NE(why(net::base64_encode("plain")).find("no whole zlib stream"), std::string::npos);
  EXPECT_NE(why(good.substr(0, good.size() / 2 / 4 * 4)).find("no whole zlib"), std::string::npos);
}

// A few bytes that would unfold to very many.
TEST(PackedMembersTest, ABombIsNotUnfolded) {
  Members members = job_of(1);
  members.members[0].pod = std::string(2 * kUnpackedBytesMost, 'a');
  const std::string bomb = pack(members);
  ASSERT_LT(bomb.size(), 100'000u);
  EXPECT_NE(unpack(bomb).error().what().find("unfolds to more"), std::string::npos);
}

}  // namespace
}  // namespace rubato::api
