#include "apiserver/memory/schema.h"

#include <gtest/gtest.h>

namespace rubato::kube {
namespace {

json::Value value_from(const char* text) { return json::parse(text).value(); }

std::string first_error(const char* schema, const char* object) {
  const auto errors = schema::validate(value_from(object), json::Value(), value_from(schema));
  return errors.empty() ? "" : errors[0].field + ": " + errors[0].message;
}

TEST(Schema, PrunesWhatIsNotDeclared) {
  auto object =
      value_from(R"({"kind":"K","spec":{"a":1,"b":2,"list":[{"x":1,"y":2}],"any":{"z":1}}})");
  const auto removed = schema::prune(object, value_from(R"({"properties":{"spec":{"properties":{
      "a":{},"list":{"items":{"properties":{"x":{}}}},
      "any":{"x-kubernetes-preserve-unknown-fields":true}}}}})"));
  EXPECT_EQ(removed, (std::vector<std::string>{"spec.b", "spec.list[0].y"}));
  EXPECT_EQ(json::dump(object), R"({"kind":"K","spec":{"a":1,"list":[{"x":1}],"any":{"z":1}}})");
}

TEST(Schema, FillsDefaultsDeeply) {
  auto object = value_from(R"({"spec":{"list":[{}],"null":null}})");
  schema::fill_defaults(object, value_from(R"({"properties":{"spec":{"properties":{
      "inner":{"default":{},"properties":{"n":{"default":3}}},
      "null":{"default":"set"},
      "list":{"items":{"properties":{"on":{"default":true}}}}}}}})"));
  EXPECT_TRUE(object ==
              value_from(R"({"spec":{"list":[{"on":true}],"null":"set","inner":{"n":3}}})"))
      << json::dump(object);
}

TEST(Schema, WordsItsErrorsAsTheRealServer) {
  EXPECT_EQ(first_error(R"({"properties":{"n":{"type":"integer","maximum":10}}})", R"({"n":99})"),
            "n: Invalid value: 99: n in body should be less than or equal to 10");
  EXPECT_EQ(first_error(R"({"properties":{"n":{"type":"integer"}}})", R"({"n":"x"})"),
            "n: Invalid value: \"string\": n in body must be of type integer: \"string\"");
  EXPECT_EQ(first_error(R"({"properties":{"s":{"enum":["a","b"]}}})", R"({"s":"c"})"),
            "s: Unsupported value: \"c\": supported values: \"a\", \"b\"");
  EXPECT_EQ(first_error(R"({"required":["s"]})", R"({})"), "s: Required value");
  EXPECT_EQ(first_error(R"({"properties":{"s":{"type":"string","pattern":"^[a-z]+$"}}})",
                        R"({"s":"ABC"})"),
            "s: Invalid value: \"ABC\": s in body should match '^[a-z]+$'");
  EXPECT_EQ(first_error(R"({"properties":{"l":{"type":"array","maxItems":1}}})", R"({"l":[1,2]})"),
            "l: Too many: 2: must have at most 1 items");
  EXPECT_EQ(
      first_error(R"({"properties":{"l":{"x-kubernetes-list-type":"set"}}})", R"({"l":["a","a"]})"),
      "l[1]: Duplicate value: \"a\"");
}

// The real server passes over it, too: what was stored under an older schema can still be updated.
TEST(Schema, PassesOverWhatAnUpdateLeftAsItWas) {
  const auto schema = value_from(R"({"properties":{"spec":{"required":["s"]},
                                 "status":{"properties":{"n":{"type":"integer"}}}}})");
  const auto before = value_from(R"({"spec":{},"status":{}})");
  auto after = before;
  after.at("status").set("n", "x");
  const auto errors = schema::validate(after, before, schema);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].field, "status.n");
  after.at("spec").set("t", 1);
  EXPECT_EQ(schema::validate(after, before, schema).size(), 2U);
}

TEST(Schema, AcceptsWhatItDeclares) {
  EXPECT_EQ(first_error(R"({"properties":{"p":{"x-kubernetes-int-or-string":true},
                            "t":{"type":"string","format":"date-time"},
                            "z":{"type":"string","nullable":true},
                            "m":{"type":"object","additionalProperties":{"type":"string"}}}})",
                        R"({"p":"50%","t":"2026-11-21T07:38:29Z","z":null,"m":{"a":"b"}})"),
            "");
}

TEST(Schema, TakesForADateTimeWhatKubernetesTakes) {
  const auto refused = [](const std::string& text) {
    return first_error(R"({"properties":{"t":{"type":"string","format":"date-time"}}})",
                       (R"({"t":")" + text + R"("})").c_str());
  };
  for (const char* time :
       {"2026-11-21T07:38:29Z", "9999-12-31T23:59:59Z", "0000-01-01T00:00:00Z",
        "2300-06-01t00:00:00.5z", "2026-11-21T07:38:29,5-08:00", "2026-11-21T07:38:29+99:99"})
    EXPECT_EQ(refused(time), "") << time;
  for (const char* time : {"noon", "2026-11-21", "2026-02-29T00:00:00Z", "2026-11-21T24:00:00Z",
                           "2026-11-21T07:38:60Z", "2026-11-21 07:38:29Z", "2026-11-21T07:38:29"})
    EXPECT_NE(refused(time), "") << time;
}

}  // namespace
}  // namespace rubato::kube
