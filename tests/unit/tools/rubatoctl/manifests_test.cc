#include "tools/rubatoctl/manifests.h"

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

using json::Value;

Value value_from(const char* text) { return json::parse(text).value_or(Value()); }

TEST(Manifests, DocumentsAndLists) {
  const auto manifests = read_manifests(
      "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\n"
      "apiVersion: v1\nkind: List\nitems:\n"
      "- {apiVersion: v1, kind: Secret, metadata: {name: b}}\n"
      "- {apiVersion: v1, kind: Secret, metadata: {name: c}}\n");
  ASSERT_TRUE(manifests.ok());
  ASSERT_EQ(manifests->size(), 3u);
  EXPECT_EQ((*manifests)[2]["metadata"]["name"].string_or(""), "c");
}

TEST(Manifests, WhatLacksIsNamed) {
  EXPECT_EQ(read_manifests("kind: Pod\n").error().what(), "document 1 has no apiVersion");
  EXPECT_EQ(read_manifests("apiVersion: v1\nkind: Pod\n").error().what(),
            "document 1 (Pod) has no metadata.name");
  EXPECT_FALSE(read_manifests("").ok());
}

TEST(Manifests, WhatIsOfAnotherTypeIsNamed) {
  const auto refusal = [](const std::string& metadata) {
    const auto manifests = read_manifests(
        "{apiVersion: v1, kind: Secret, metadata: {name: a}}\n---\n"
        "{apiVersion: v1, kind: Pod, metadata: " +
        metadata + "}\n");
    return manifests.ok() ? "" : manifests.error().what();
  };
  EXPECT_EQ(refusal("{name: ''}"), "document 2 (Pod) has an empty metadata.name");
  EXPECT_EQ(refusal("{name: 5}"),
            "document 2 (Pod) has a metadata.name that is no text: put it in quotes");
  EXPECT_EQ(refusal("{name: null}"), "document 2 (Pod) has no metadata.name");
  EXPECT_EQ(refusal("text"), "document 2 (Pod) has no metadata.name");
  EXPECT_EQ(refusal("{name: a, namespace: 2024}"),
            "document 2 (Pod) has a metadata.namespace that is no text: put it in quotes");
  for (const char* wrong : {"x", "[]", "true"}) {
    EXPECT_EQ(refusal(std::string("{name: a, annotations: ") + wrong + "}"),
              "document 2 (Pod) has metadata.annotations that are no map");
    EXPECT_EQ(refusal(std::string("{name: a, labels: ") + wrong + "}"),
              "document 2 (Pod) has metadata.labels that are no map");
  }
  EXPECT_EQ(refusal("{name: a, namespace: null, labels: null, annotations: null}"), "");
}

TEST(ThreeWay, SetsRemovesAndLeaves) {
  const Value last = value_from(R"({"spec":{"a":1,"gone":2,"deep":{"x":1,"y":2}}})");
  const Value wanted = value_from(R"({"spec":{"a":1,"b":5,"deep":{"x":3}}})");
  const Value live =
      value_from(R"({"spec":{"a":1,"gone":2,"deep":{"x":1,"y":2},"default":9},"status":{"s":1}})");
  EXPECT_EQ(three_way_patch(last, wanted, live),
            value_from(R"({"spec":{"b":5,"gone":null,"deep":{"x":3,"y":null}}})"));
}

TEST(ThreeWay, NoChangeIsNull) {
  const Value wanted = value_from(R"({"apiVersion":"v1","kind":"X","spec":{"a":[1,2]}})");
  const Value live = value_from(R"({"apiVersion":"v1","kind":"X","spec":{"a":[1,2],"b":3}})");
  EXPECT_TRUE(three_way_patch(wanted, wanted, live).is_null());
}

TEST(ThreeWay, WhatOthersRemovedIsNotRemovedAgain) {
  EXPECT_TRUE(three_way_patch(value_from(R"({"spec":{"gone":1}})"), value_from(R"({"spec":{}})"),
                              value_from(R"({"spec":{}})"))
                  .is_null());
}

TEST(LastApplied, RemembersTheBareManifest) {
  const Value marked =
      with_last_applied(value_from(R"({"apiVersion":"v1","kind":"X","metadata":{"name":"a"}})"));
  EXPECT_EQ(
      marked["metadata"]["annotations"][kLastApplied].string_or(""),
      "{\"apiVersion\":\"v1\",\"kind\":\"X\",\"metadata\":{\"name\":\"a\",\"annotations\":{}}}"
      "\n");
}

TEST(Refusal, OneCauseALine) {
  EXPECT_EQ(readable_refusal("x \"a\" is invalid: [spec.gpus.min: Invalid value: 5: min is above "
                             "max, which is 2, spec.queue: Required value]"),
            "x \"a\" is invalid:\n"
            "  * spec.gpus.min: Invalid value: 5: min is above max, which is 2\n"
            "  * spec.queue: Required value");
  EXPECT_EQ(readable_refusal("not found"), "not found");
}

TEST(Refusal, OfAPatchWithoutTheObject) {
  EXPECT_EQ(readable_refusal(" \"\" is invalid: patch: Invalid value: "
                             R"("{\"spec\":{\"note\":\"a \\\": b\",\"gpu\":[1]}}": )"
                             "strict decoding error: unknown field \"spec.gpu\""),
            "strict decoding error: unknown field \"spec.gpu\"");
  const std::string cut = " \"\" is invalid: patch: Invalid value: \"{\\";
  EXPECT_EQ(readable_refusal(cut), cut);
}

TEST(NamespaceFor, TheManifestsUnlessAnotherWasAskedFor) {
  const Value there = value_from(R"({"metadata":{"name":"a","namespace":"default"}})");
  const Value nowhere = value_from(R"({"metadata":{"name":"a"}})");
  EXPECT_EQ(namespace_for(there, "", "team-x").value_or("?"), "default");
  EXPECT_EQ(namespace_for(there, "default", "team-x").value_or("?"), "default");
  EXPECT_EQ(namespace_for(nowhere, "", "team-x").value_or("?"), "team-x");
  EXPECT_EQ(namespace_for(nowhere, "team-y", "team-x").value_or("?"), "team-y");
  const auto refused = namespace_for(there, "team-y", "team-y");
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(refused.error().what().starts_with(
      "the namespace from the provided object \"default\" does not match the namespace "
      "\"team-y\"\n  What to do: "));
}

}  // namespace
}  // namespace rubato::ctl
