// Custom types: unknown fields, defaults, and the words of every schema error.
#include "tests/conformance/target.h"

namespace rubato::kube::conformance {
namespace {

using json::Value;

class Schema : public Conformance {
 protected:
  Value with(const char* spec) {
    Value object = widget("a");
    json::merge_patch(object.at("spec"), parsed(spec));
    return object;
  }
  // What the server says to this spec, after "… is invalid: ".
  std::string refusal(const char* spec) {
    WriteOptions dry;
    dry.dry_run = true;
    const auto made = client().create(kWidget, ns(), with(spec), dry);
    if (made.ok()) return "accepted";
    const std::string prefix = "invalid Invalid: Widget.example.dev \"a\" is invalid: ";
    const std::string text = said(made.error());
    return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
  }
};
INSTANTIATE_TEST_SUITE_P(, Schema, ::testing::ValuesIn(target_names()), name_of_target);

TEST_P(Schema, UnknownFieldsAreRefusedOrDropped) {
  const Value object = with(R"({"bogus": 1, "ports": [{"name": "x", "other": 2}]})");
  WriteOptions options;
  options.field_validation = "Strict";
  EXPECT_EQ(said(client().create(kWidget, ns(), object, options).error()),
            "invalid BadRequest: Widget in version \"v1\" cannot be handled as a Widget: strict "
            "decoding error: unknown field \"spec.bogus\", unknown field \"spec.ports[0].other\"");
  options.field_validation = "Ignore";
  const auto made = client().create(kWidget, ns(), object, options);
  ASSERT_TRUE(made.ok());
  EXPECT_FALSE((*made)["spec"].has("bogus"));
  EXPECT_FALSE((*made)["spec"]["ports"][0].has("other"));
}

TEST_P(Schema, UnknownFieldsOfAPatchAreRefusedInOtherWords) {
  make(kWidget, widget("a"));
  WriteOptions options;
  options.field_validation = "Strict";
  const auto bad = client().patch(kWidget, key("a"), PatchType::kMerge,
                                  parsed(R"({"spec":{"bogus":1}})"), options);
  const std::string text = said(bad.error());
  EXPECT_TRUE(text.starts_with("invalid Invalid:  \"\" is invalid: patch: Invalid value: \"{"))
      << text;
  EXPECT_TRUE(text.ends_with("\": strict decoding error: unknown field \"spec.bogus\"")) << text;
}

TEST_P(Schema, DefaultsAreFilledDeeply) {
  const Value made = make(kWidget, with(R"({"ports": [{"name": "x"}], "any": {"z": [1]}})"));
  EXPECT_EQ(made["spec"]["ports"][0]["port"].int_or(0), 80);
  EXPECT_EQ(made["spec"]["nested"]["depth"].int_or(0), 3);
  EXPECT_EQ(made["spec"]["any"]["z"][0].int_or(0), 1);
}

TEST_P(Schema, NullsGiveWayToDefaults) {
  Value object = widget("a");
  object.at("spec").set("replicas", Value());
  object.at("spec").set("note", Value());
  const Value made = make(kWidget, object);
  EXPECT_EQ(made["spec"]["replicas"].int_or(0), 1);
  EXPECT_TRUE(made["spec"].has("note"));
  object.at("spec").set("size", Value());
  object.at("metadata").set("name", "b");
  EXPECT_FALSE(make(kWidget, object)["spec"].has("size"));
  object.at("spec").set("image", Value());
  EXPECT_EQ(said(client().create(kWidget, ns(), object).error()),
            "invalid Invalid: Widget.example.dev \"b\" is invalid: spec.image: Required value");
}

TEST_P(Schema, NumbersHaveBounds) {
  EXPECT_EQ(refusal(R"({"replicas": 99})"),
            "spec.replicas: Invalid value: 99: spec.replicas in body should be less than or equal "
            "to 10");
  EXPECT_EQ(refusal(R"({"replicas": -1})"),
            "[spec.replicas: Invalid value: -1: spec.replicas in body should be greater than or "
            "equal to 0, .spec.replicas: Invalid value: -1: should be a non-negative integer]");
  EXPECT_EQ(refusal(R"({"ratio": 0})"),
            "spec.ratio: Invalid value: 0: spec.ratio in body should be greater than 0");
  EXPECT_EQ(refusal(R"({"step": 7})"),
            "spec.step: Invalid value: 7: spec.step in body should be a multiple of 5");
  EXPECT_EQ(refusal(R"({"step": 10, "ratio": 0.5})"), "accepted");
}

TEST_P(Schema, TypesMustFit) {
  EXPECT_EQ(refusal(R"({"replicas": "x"})"),
            "[spec.replicas: Invalid value: \"string\": spec.replicas in body must be of type "
            "integer: \"string\", .spec.replicas: Invalid value: 0: .spec.replicas accessor "
            "error: x is of the type string, expected int64]");
  EXPECT_EQ(
      refusal(R"({"step": 1.5})"),
      "[spec.step: Invalid value: \"number\": spec.step in body must be of type integer: "
      "\"number\", <nil>: Invalid value: \"\": Checked value must be of type integer "
      "(default format) in spec.step, spec.step: Invalid value: 1.5: spec.step in body should "
      "be a multiple of 5]");
  EXPECT_EQ(refusal(R"({"on": "yes"})"),
            "spec.on: Invalid value: \"string\": spec.on in body must be of type boolean: "
            "\"string\"");
  EXPECT_EQ(refusal(R"({"tags": {}})"),
            "spec.tags: Invalid value: \"object\": spec.tags in body must be of type array: "
            "\"object\"");
  EXPECT_EQ(refusal(R"({"ports": [1]})"),
            "[spec.ports[0]: Invalid value: \"integer\": spec.ports[0] in body must be of type "
            "object: \"integer\", spec.ports[0]: Invalid value: 1: must be an object for an array "
            "of list-type map]");
  EXPECT_EQ(refusal(R"({"port": true})"),
            "spec.port: Invalid value: \"boolean\": spec.port in body must be of type "
            "integer,string: \"boolean\"");
  EXPECT_EQ(refusal(R"({"port": "50%"})"), "accepted");
  EXPECT_EQ(refusal(R"({"labels": {"k": 1}})"),
            "spec.labels.k: Invalid value: \"integer\": spec.labels.k in body must be of type "
            "string: \"integer\"");
}

TEST_P(Schema, WholeNumbersMayComeAsFloats) {
  EXPECT_EQ(refusal(R"({"step": 7.0})"),
            "spec.step: Invalid value: 7: spec.step in body should be a multiple of 5");
  EXPECT_EQ(refusal(R"({"replicas": 5.0})"),
            ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: 5 is of the type "
            "float64, expected int64");
  const Value made = make(kWidget, with(R"({"step": 10.0, "port": 80.0})"));
  EXPECT_EQ(made["spec"]["step"], Value(10));
  EXPECT_EQ(made["spec"]["port"], Value(80));
  // The same number, but a change of the spec.
  const auto again =
      client().patch(kWidget, key("a"), PatchType::kMerge, parsed(R"({"spec":{"step":10.0}})"));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)["spec"]["step"], Value(10));
  EXPECT_EQ((*again)["metadata"]["generation"], Value(2));
}

// Nothing looks at a list where a text of some format stands.
TEST_P(Schema, AListMayStandForADate) {
  EXPECT_EQ(refusal(R"({"at": []})"), "accepted");
  EXPECT_EQ(refusal(R"({"at": [1]})"), "accepted");
  EXPECT_EQ(refusal(R"({"at": {}})"),
            "spec.at: Invalid value: \"\": spec.at in body must be of type date-time: \"\"");
}

TEST_P(Schema, StringsHaveRules) {
  EXPECT_EQ(refusal(R"({"image": ""})"),
            "spec.image: Invalid value: \"\": spec.image in body should be at least 1 chars long");
  EXPECT_EQ(refusal(R"({"image": "123456789012345678901"})"),
            "spec.image: Too long: may not be more than 20 bytes");
  EXPECT_EQ(refusal(R"({"name": "ABC"})"),
            "spec.name: Invalid value: \"ABC\": spec.name in body should match '^[a-z]+$'");
  EXPECT_EQ(refusal(R"({"size": "huge"})"),
            "spec.size: Unsupported value: \"huge\": supported values: \"small\", \"medium\", "
            "\"large\"");
  EXPECT_EQ(refusal(R"({"at": "noon"})"),
            "spec.at: Invalid value: \"noon\": spec.at in body must be of type date-time: "
            "\"noon\"");
  for (const char* at : {"2026-11-21T07:38:29Z", "9999-12-31T23:59:59Z", "2300-06-01t00:00:00.5z"})
    EXPECT_EQ(refusal((R"({"at": ")" + std::string(at) + "\"}").c_str()), "accepted") << at;
}

TEST_P(Schema, ListsHaveRules) {
  EXPECT_EQ(refusal(R"({"tags": []})"),
            "spec.tags: Invalid value: 0: spec.tags in body should have at least 1 items");
  EXPECT_EQ(refusal(R"({"tags": ["a", "b", "c", "d"]})"),
            "spec.tags: Too many: 4: must have at most 3 items");
  EXPECT_EQ(refusal(R"({"tags": ["a", "a"]})"), "spec.tags[1]: Duplicate value: \"a\"");
  EXPECT_EQ(refusal(R"({"ports": [{"name": "x"}, {"name": "x"}]})"),
            "spec.ports[1]: Duplicate value: {\"name\":\"x\"}");
  EXPECT_EQ(refusal(R"({"ports": [{"port": 1}]})"), "spec.ports[0].name: Required value");
}

TEST_P(Schema, ObjectsHaveRules) {
  Value object = widget("a");
  object.at("spec").erase("image");
  EXPECT_EQ(said(client().create(kWidget, ns(), object).error()),
            "invalid Invalid: Widget.example.dev \"a\" is invalid: spec.image: Required value");
  object.erase("spec");
  EXPECT_EQ(said(client().create(kWidget, ns(), object).error()),
            "invalid Invalid: Widget.example.dev \"a\" is invalid: spec: Required value");
  EXPECT_EQ(refusal(R"({"labels": {"a": "1", "b": "2", "c": "3"}})"),
            "spec.labels: Too many: 3: must have at most 2 items");
  EXPECT_EQ(refusal(R"({"either": {"a": "x"}})"), "accepted");
  EXPECT_NE(refusal(R"({"either": {}})"), "accepted");
}

TEST_P(Schema, SeveralErrorsComeTogether) {
  const std::string both = refusal(R"({"replicas": 99, "size": "huge"})");
  EXPECT_TRUE(both.starts_with("[")) << both;
  EXPECT_NE(both.find("spec.replicas: Invalid value: 99"), std::string::npos) << both;
  EXPECT_NE(both.find("spec.size: Unsupported value: \"huge\""), std::string::npos) << both;
}

TEST_P(Schema, UpdatesAreCheckedToo) {
  make(kWidget, widget("a"));
  const auto bad =
      client().patch(kWidget, key("a"), PatchType::kMerge, parsed(R"({"spec":{"replicas":11}})"));
  EXPECT_EQ(said(bad.error()),
            "invalid Invalid: Widget.example.dev \"a\" is invalid: spec.replicas: Invalid value: "
            "11: spec.replicas in body should be less than or equal to 10");
}

}  // namespace
}  // namespace rubato::kube::conformance
