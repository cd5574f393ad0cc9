#include "kube/selector.h"

#include <gtest/gtest.h>

namespace rubato::kube {
namespace {

using json::Value;

Value object() {
  return Value::object(
      {{"metadata",
        Value::object({{"name", "a"},
                       {"labels", Value::object({{"app", "web"}, {"cores", "8"}, {"x/y", ""}})}})},
       {"spec", Value::object({{"unschedulable", true}})}});
}

bool labels(std::string_view text) {
  auto selector = Selector::parse_labels(text);
  EXPECT_TRUE(selector.ok()) << text;
  return selector.ok() && selector.value().matches_labels(object());
}
bool fields(std::string_view text) {
  auto selector = Selector::parse_fields(text);
  EXPECT_TRUE(selector.ok()) << text;
  return selector.ok() && selector.value().matches_fields(object());
}

TEST(Selector, LabelsThatMatch) {
  for (const char* text :
       {"", " ", "app=web", "app==web", "app = web", "app in (db, web)", "app", "!gone", "app!=db",
        "gone!=x", "gone notin (x)", "cores>4", "cores<9", "x/y", "x/y=", "app=web,cores=8"})
    EXPECT_TRUE(labels(text)) << text;
}

TEST(Selector, LabelsThatDoNotMatch) {
  for (const char* text : {"app=db", "gone=x", "gone", "!app", "app!=web", "app notin (web,db)",
                           "cores>8", "app>1", "gone in (x)", "app=web,cores=9"})
    EXPECT_FALSE(labels(text)) << text;
}

TEST(Selector, BadLabelsAreRefused) {
  for (const char* text : {",", "app=web,", "a b", "a in x", "a in (x", "a=b c", "=x", "a!b", "!",
                           "a>x", "a/b/c", "a=b/c"}) {
    auto selector = Selector::parse_labels(text);
    ASSERT_FALSE(selector.ok()) << text;
    EXPECT_EQ(selector.error().code(), Code::kInvalid);
  }
}

TEST(Selector, Fields) {
  EXPECT_TRUE(fields("metadata.name=a"));
  EXPECT_TRUE(fields("metadata.name==a,spec.unschedulable=true"));
  EXPECT_TRUE(fields("spec.nodeName="));
  EXPECT_TRUE(fields("spec.nodeName!=n1"));
  EXPECT_FALSE(fields("spec.nodeName!="));
  EXPECT_FALSE(fields("metadata.name!=a"));
  EXPECT_FALSE(Selector::parse_fields("metadata.name").ok());
  EXPECT_FALSE(Selector::parse_fields("metadata.name>a").ok());
}

TEST(Selector, FromObject) {
  auto selector = Selector::from_object(Value::object(
      {{"matchLabels", Value::object({{"app", "web"}})},
       {"matchExpressions",
        Value::array(
            {Value::object(
                 {{"key", "cores"}, {"operator", "In"}, {"values", Value::array({"8", "16"})}}),
             Value::object({{"key", "gone"}, {"operator", "DoesNotExist"}})})}}));
  ASSERT_TRUE(selector.ok());
  EXPECT_TRUE(selector.value().matches_labels(object()));
  EXPECT_FALSE(
      Selector::from_object(
          Value::object({{"matchExpressions",
                          Value::array({Value::object({{"key", "a"}, {"operator", "In"}})})}}))
          .ok());
}

}  // namespace
}  // namespace rubato::kube
