#include "common/net/channel.h"

#include <gtest/gtest.h>

namespace rubato::net {
namespace {

TEST(Endpoint, ReadsWhatItPrints) {
  for (const char* text : {"127.0.0.1:4430", "[::1]:4430", "coordinator.svc:1", "h:65535"}) {
    EXPECT_EQ(to_string(parse_endpoint(text).value()), text);
  }
  EXPECT_EQ(parse_endpoint("[::1]:80").value(), (Endpoint{"::1", 80}));
}

TEST(Endpoint, RefusesOthers) {
  for (const char* text : {"", "h", ":1", "h:", "h:65536", "h:-1", "h:1x", "::1:80", "[::1:80",
                           "[]:80", "h:+1", "[a]b:1"}) {
    EXPECT_FALSE(parse_endpoint(text).ok()) << text;
  }
}

}  // namespace
}  // namespace rubato::net
