#include "tools/rubatoctl/objects.h"

#include <utility>

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

json::Value value_of(const std::string& text) { return json::parse(text).value(); }

std::string events_text(const std::string& events, const std::string& object) {
  const WallTime now = parse_rfc3339("2026-11-21T09:00:00Z").value();
  return render(event_table(value_of(events).items(), value_of(object), now), false);
}

TEST(NamedObject, TakesTheNameBehindASlash) {
  for (const auto& [resource, name] : {std::pair("tj", "a"), std::pair("tj/a", "")}) {
    const auto object = named_object(resource, name);
    ASSERT_TRUE(object.ok()) << resource;
    EXPECT_EQ(object->resource, "tj");
    EXPECT_EQ(object->name, "a");
  }
  for (const auto& [resource, name] :
       {std::pair("tj", ""), std::pair("tj/", ""), std::pair("tj/a", "b")})
    EXPECT_NE(named_object(resource, name).error().what().find("`rubatoctl describe tj NAME`"),
              std::string::npos)
        << resource;
}

TEST(EventTable, KnowsTheTimesOfKubeletsToo) {
  EXPECT_EQ(events_text(R"([
        {"regarding":{"uid":"u"},"eventTime":"2026-11-21T08:59:30.000000Z","type":"Normal","reason":"New",
         "note":"a","series":{"count":3,"lastObservedTime":"2026-11-21T08:59:50.000000Z"}},
        {"regarding":{"uid":"other"},"eventTime":"2026-11-21T08:59:30.000000Z","reason":"Other"},
        {"regarding":{"uid":"u"},"eventTime":null,"type":"Warning","reason":"BackOff","note":"b",
         "deprecatedFirstTimestamp":"2026-11-21T08:00:00Z",
         "deprecatedLastTimestamp":"2026-11-21T08:59:40Z","deprecatedCount":37},
        {"regarding":{"uid":"u"},"eventTime":null,"type":"Normal","reason":"Old","note":"c",
         "metadata":{"creationTimestamp":"2026-11-21T08:58:30Z"}},
        {"regarding":{"uid":"u"},"eventTime":"2026-11-21T08:59:35.000000Z","type":"Normal",
         "reason":"Once","note":"d"}])",
                        R"({"kind":"Pod","metadata":{"name":"p","uid":"u"}})"),
            "90s   Normal    Old       c\n"
            "25s   Normal    Once      d\n"
            "20s   Warning   BackOff   b (x37)\n"
            "10s   Normal    New       a (x3)\n");
}

TEST(EventTable, ANodeHasThoseOfItsKubelet) {
  const std::string events = R"([
    {"regarding":{"kind":"Node","uid":"n1"},"deprecatedLastTimestamp":"2026-11-21T08:59:40Z",
     "type":"Normal","reason":"Starting","note":"a"},
    {"regarding":{"kind":"Node","uid":"n2"},"reason":"Other"},
    {"regarding":{"kind":"Pod","uid":"n1"},"reason":"Other"}])";
  EXPECT_EQ(events_text(events, R"({"kind":"Node","metadata":{"name":"n1","uid":"u"}})"),
            "20s   Normal   Starting   a\n");
  EXPECT_EQ(events_text(events, R"({"kind":"Pod","metadata":{"name":"n1","uid":"u"}})"), "");
}

}  // namespace
}  // namespace rubato::ctl
