#include "operator/api/crd.h"

#include "common/yaml.h"
#include "operator/api/codec.h"
#include "operator/api/resources.h"
#include "operator/api/training_job.h"

#include <gtest/gtest.h>

namespace rubato::api {
namespace {

using json::Value;

const Value& root_of(const Value& crd) {
  return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
}

// Every node of a structural schema says what it is.
void expect_typed(const Value& schema, const std::string& path) {
  const bool free = schema["x-kubernetes-int-or-string"].bool_or(false);
  EXPECT_TRUE(free || schema["type"].is_string()) << path;
  for (const auto& [name, member] : schema["properties"].members())
    expect_typed(member, path + "." + name);
  if (schema.has("items")) expect_typed(schema["items"], path + "[]");
  if (schema.has("additionalProperties")) expect_typed(schema["additionalProperties"], path + "[]");
}

TEST(Crd, IsStructuralForEachKind) {
  ASSERT_EQ(kinds().size(), 4u);
  for (const Kind& kind : kinds()) {
    const Value object = crd(kind);
    EXPECT_EQ(object["metadata"]["name"].string_or(""), kind.type.plural + ".rubato.dev");
    expect_typed(root_of(object), kind.type.kind);
  }
}

TEST(Crd, TrainingJobScalesItsMaximum) {
  const Value object = crd(*find_kind("TrainingJob"));
  const Value& version = object["spec"]["versions"][0];
  EXPECT_EQ(version["subresources"]["scale"]["specReplicasPath"], Value(".spec.gpus.max"));
  EXPECT_EQ(object["spec"]["names"]["shortNames"][0], Value("tj"));
  std::string columns;
  for (const Value& column : version["additionalPrinterColumns"].items())
    columns += column["name"].string_or("") + (column.has("priority") ? "* " : " ");
  EXPECT_EQ(columns, "State GPUs Type Progress Loss Tokens/s Goodput Rescales Age Queue* Reason* ");
}

// What the API server fills in is what a program without a server assumes.
void expect_default(const Value& schema, const Value& encoded, const std::string& path) {
  for (const auto& [name, member] : schema["properties"].members()) {
    if (member.has("default")) {
      EXPECT_EQ(member["default"], encoded[name]) << path << "." << name;
    }
    if (encoded.has(name)) expect_default(member, encoded[name], path + "." + name);
  }
}

TEST(Crd, DefaultsAreThoseOfTheStructs) {
  TrainingJobSpec spec;
  TrainingSpec& training = spec.training.emplace();
  training.model.emplace();
  training.data.emplace();
  const Value object = crd(*find_kind("TrainingJob"));
  expect_default(root_of(object)["properties"]["spec"], encode(spec), "spec");
}

TEST(ToYaml, QuotesWhatYamlWouldMisread) {
  const Value value = Value::object({{"a", "plain words"},
                                     {"b", "yes"},
                                     {"c", "x: y"},
                                     {"d", "1.5"},
                                     {"e", ""},
                                     {"f", "it's # not"},
                                     {"g", Value::array({1, "two", Value::object({{"h", true}})})},
                                     {"i", Value::object()},
                                     {"j", "≥"}});
  EXPECT_EQ(to_yaml(value),
            "a: plain words\nb: \"yes\"\nc: \"x: y\"\nd: \"1.5\"\ne: \"\"\nf: \"it's # not\"\n"
            "g:\n- 1\n- two\n- h: true\ni: {}\nj: \"≥\"\n");
}

// Each string comes back as it was, from a reader of YAML 1.1 and whatever else calls itself YAML.
TEST(ToYaml, KeepsStringsThatLookLikeOtherThings) {
  for (const char* word :
       {"NULL",       "Null",      "TRUE",   "True",       "FALSE",
        "Yes",        "YES",       "No",     "NO",         "on",
        "ON",         "On",        "off",    "Off",        "OFF",
        "y",          "Y",         "n",      "N",          "~",
        "0o17",       "017",       "1_000",  "0x1f",       "0b11",
        "1:30",       "1:30:00.5", ".inf",   "-.INF",      ".NaN",
        ".nan",       "+1",        "1e3",    "2001-01-01", "2001-12-14t21:59:43.10-05:00",
        "---",        "...",       "<<",     "=",          "- a",
        "? a",        "&a",        "*a",     "!a",         "%a",
        "@a",         "`a",        "|",      ">",          "a:",
        "a: b",       "a #b",      " a",     "a ",         "a\tb",
        "a\nb",       "\x7f",      "a\x7f",  "\x01",       "\u0085",
        "\u009f",     "\u2028",    "\u2029", "\ufeff",     "\uffff",
        "\U0001f600", "naïve"}) {
    const Value value = Value::object({{"word", word}, {word, 1}});
    const std::string text = to_yaml(value);
    EXPECT_EQ(text.rfind("word: \"", 0), 0u) << text;
    const auto again = yaml::parse(text);
    ASSERT_TRUE(again.ok()) << text << again.error().what();
    EXPECT_EQ(*again, value) << text;
    EXPECT_TRUE(text.find_first_of("\x7f\x01") == std::string::npos) << text;
  }
  const Value plain = Value::object({{"a", "nullable"}, {"b", "Yesterday"}, {"c", "/on"}});
  EXPECT_EQ(to_yaml(plain), "a: nullable\nb: Yesterday\nc: /on\n");
  EXPECT_EQ(to_yaml(Value::object({{"a", "\u0080\u2028"}})), "a: \"\\u0080\\u2028\"\n");
}

TEST(ApiReference, NamesEveryFieldOfTheSpec) {
  const std::string page = api_reference();
  for (const FieldSchema& field : TrainingJobSpec::schema().fields())
    EXPECT_NE(page.find("| `" + field.name + "` |"), std::string::npos) << field.name;
}

}  // namespace
}  // namespace rubato::api
