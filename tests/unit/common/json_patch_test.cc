#include "common/json.h"

#include <gtest/gtest.h>

namespace rubato::json {
namespace {

Value value_of(std::string_view text) {
  auto value = parse(text);
  EXPECT_TRUE(value.ok()) << text;
  return value.value_or(Value());
}

TEST(JsonPointer, TheExamplesOfRfc6901) {
  const Value v = value_of(
      R"({"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8})");
  EXPECT_EQ(resolve(v, ""), &v);
  EXPECT_EQ(resolve(v, "/foo/0")->string_or(""), "bar");
  EXPECT_EQ(resolve(v, "/")->int_or(-1), 0);
  EXPECT_EQ(resolve(v, "/a~1b")->int_or(-1), 1);
  EXPECT_EQ(resolve(v, "/m~0n")->int_or(-1), 8);
  EXPECT_EQ(resolve(v, "/ ")->int_or(-1), 7);
  for (const char* missing :
       {"foo", "/foo/2", "/foo/-", "/foo/01", "/foo/0/x", "/nope", "/m~2n", "/m~", "/foo/+1"}) {
    EXPECT_EQ(resolve(v, missing), nullptr) << missing;
  }
  EXPECT_EQ(escape_pointer("a/b~c"), "a~1b~0c");
}

TEST(JsonMergePatch, TheExamplesOfRfc7386) {
  const struct {
    const char *target, *patch, *result;
  } cases[] = {
      {R"({"a":"b"})", R"({"a":"c"})", R"({"a":"c"})"},
      {R"({"a":"b"})", R"({"b":"c"})", R"({"a":"b","b":"c"})"},
      {R"({"a":"b"})", R"({"a":null})", R"({})"},
      {R"({"a":"b","b":"c"})", R"({"a":null})", R"({"b":"c"})"},
      {R"({"a":["b"]})", R"({"a":"c"})", R"({"a":"c"})"},
      {R"({"a":"c"})", R"({"a":["b"]})", R"({"a":["b"]})"},
      {R"({"a":{"b":"c"}})", R"({"a":{"b":"d","c":null}})", R"({"a":{"b":"d"}})"},
      {R"({"a":[{"b":"c"}]})", R"({"a":[1]})", R"({"a":[1]})"},
      {R"(["a","b"])", R"(["c","d"])", R"(["c","d"])"},
      {R"({"a":"b"})", R"(["c"])", R"(["c"])"},
      {R"({"a":"foo"})", R"(null)", R"(null)"},
      {R"({"a":"foo"})", R"("bar")", R"("bar")"},
      {R"({"e":null})", R"({"a":1})", R"({"e":null,"a":1})"},
      {R"([1,2])", R"({"a":"b","c":null})", R"({"a":"b"})"},
      {R"({})", R"({"a":{"bb":{"ccc":null}}})", R"({"a":{"bb":{}}})"},
  };
  for (const auto& c : cases) {
    Value target = value_of(c.target);
    merge_patch(target, value_of(c.patch));
    EXPECT_EQ(dump(target), c.result) << c.target << " + " << c.patch;
  }
  Value self = value_of(R"({"a":{"b":1,"c":null}})");
  merge_patch(self, self);
  EXPECT_EQ(dump(self), R"({"a":{"b":1}})");
}

TEST(JsonPatch, AppliesEachOperation) {
  const struct {
    const char *target, *patch, *result;
  } cases[] = {
      {R"({"foo":"bar"})", R"([{"op":"add","path":"/baz","value":"qux"}])",
       R"({"foo":"bar","baz":"qux"})"},
      {R"({"foo":["bar","baz"]})", R"([{"op":"add","path":"/foo/1","value":"qux"}])",
       R"({"foo":["bar","qux","baz"]})"},
      {R"({"foo":["bar"]})", R"([{"op":"add","path":"/foo/-","value":["abc","def"]}])",
       R"({"foo":["bar",["abc","def"]]})"},
      {R"({"a":1})", R"([{"op":"add","path":"","value":[1]}])", R"([1])"},
      {R"({"a":1})", R"([{"op":"add","path":"/a","value":null}])", R"({"a":null})"},
      {R"({"baz":"qux","foo":"bar"})", R"([{"op":"remove","path":"/baz"}])", R"({"foo":"bar"})"},
      {R"({"foo":["bar","qux","baz"]})", R"([{"op":"remove","path":"/foo/1"}])",
       R"({"foo":["bar","baz"]})"},
      {R"({"baz":"qux"})", R"([{"op":"replace","path":"/baz","value":"boo"}])", R"({"baz":"boo"})"},
      {R"({"foo":{"bar":"baz","w":"f"},"q":{"c":"g"}})",
       R"([{"op":"move","from":"/foo/w","path":"/q/t"}])",
       R"({"foo":{"bar":"baz"},"q":{"c":"g","t":"f"}})"},
      {R"({"foo":["all","grass","cows","eat"]})",
       R"([{"op":"move","from":"/foo/1","path":"/foo/3"}])",
       R"({"foo":["all","cows","eat","grass"]})"},
      {R"({"a":{"b":1}})", R"([{"op":"copy","from":"/a","path":"/c"},
                              {"op":"replace","path":"/c/b","value":2}])",
       R"({"a":{"b":1},"c":{"b":2}})"},
      {R"({"a":{"b":[1,"x"]}})", R"([{"op":"test","path":"/a","value":{"b":[1.0,"x"]}}])",
       R"({"a":{"b":[1,"x"]}})"},
  };
  for (const auto& c : cases) {
    Value target = value_of(c.target);
    const Status status = json_patch(target, value_of(c.patch));
    EXPECT_TRUE(status.ok()) << c.patch;
    EXPECT_EQ(dump(target), c.result) << c.patch;
  }
}

// Asked of kube-apiserver: tests/conformance has the same.
TEST(JsonPatch, TakesIndexesAsTheApiServerDoes) {
  const struct {
    const char* operation;
    const char* result;
  } cases[] = {{R"({"op":"add","path":"/-1","value":9})", "[1,2,9]"},
               {R"({"op":"add","path":"/-2","value":9})", "[1,9,2]"},
               {R"({"op":"add","path":"/-3","value":9})", "[9,1,2]"},
               {R"({"op":"add","path":"/-0","value":9})", "[9,1,2]"},
               {R"({"op":"add","path":"/01","value":9})", "[1,9,2]"},
               {R"({"op":"add","path":"/+1","value":9})", "[1,9,2]"},
               {R"({"op":"remove","path":"/-1"})", "[1]"},
               {R"({"op":"remove","path":"/-2"})", "[2]"},
               {R"({"op":"replace","path":"/-1","value":9})", "[1,9]"},
               {R"({"op":"replace","path":"/+1","value":9})", "[1,9]"},
               {R"({"op":"copy","from":"/-1","path":"/0"})", "[2,1,2]"},
               {R"({"op":"move","from":"/-1","path":"/0"})", "[2,1]"}};
  for (const auto& c : cases) {
    Value target = value_of("[1,2]");
    EXPECT_TRUE(json_patch(target, value_of(("[" + std::string(c.operation) + "]").c_str())).ok())
        << c.operation;
    EXPECT_EQ(dump(target), c.result) << c.operation;
  }
}

TEST(JsonPatch, AFaultLeavesTheTargetAsItWas) {
  const struct {
    const char* patch;
    Code code;
  } cases[] = {
      {R"({"op":"add"})", Code::kInvalid},
      {R"([{"op":"add","path":"/a/b/c","value":1}])", Code::kInvalid},
      {R"([{"op":"add","path":"/list/3","value":1}])", Code::kInvalid},
      {R"([{"op":"add","path":"/list/-4","value":1}])", Code::kInvalid},
      {R"([{"op":"replace","path":"/list/-3","value":1}])", Code::kInvalid},
      {R"([{"op":"remove","path":"/list/-"}])", Code::kInvalid},
      {R"([{"op":"add","path":"/list/+-1","value":1}])", Code::kInvalid},
      {R"([{"op":"add","path":"/n/x","value":1}])", Code::kInvalid},
      {R"([{"op":"add","path":"/x"}])", Code::kInvalid},
      {R"([{"op":"add","path":"x","value":1}])", Code::kInvalid},
      {R"([{"op":"remove","path":"/x"}])", Code::kInvalid},
      {R"([{"op":"replace","path":"/x","value":1}])", Code::kInvalid},
      {R"([{"op":"move","from":"/list","path":"/list/0"}])", Code::kInvalid},
      {R"([{"op":"copy","from":"/x","path":"/y"}])", Code::kInvalid},
      {R"([{"op":"jump","path":"/y"}])", Code::kInvalid},
      {R"([1])", Code::kInvalid},
      {R"([{"op":"test","path":"/n","value":8}])", Code::kConflict},
      {R"([{"op":"test","path":"/x","value":null}])", Code::kConflict},
      {R"([{"op":"remove","path":"/n"},{"op":"test","path":"/n","value":7}])", Code::kConflict},
  };
  const Value before = value_of(R"({"list":[1,2],"n":7})");
  for (const auto& c : cases) {
    Value target = before;
    const Status status = json_patch(target, value_of(c.patch));
    ASSERT_FALSE(status.ok()) << c.patch;
    EXPECT_EQ(status.error().code(), c.code) << c.patch;
    EXPECT_EQ(status.error().reason(), c.code == Code::kConflict ? "TestFailed" : "");
    EXPECT_EQ(target, before);
  }
  Value target = before;
  const Status status = json_patch(target, value_of(R"([{"op":"remove","path":"/n"},{"op":"x"}])"));
  EXPECT_EQ(status.error().what(), "operation 1: no string \"path\"");
}

// Each operation doubles the document: without a bound, 30 of them would fill any memory.
TEST(JsonPatch, RepeatedCopiesAreBounded) {
  Value target = value_of(R"({"a":[1]})");
  Value operations = Value::array();
  for (int i = 0; i < 40; ++i) {
    operations.push_back(Value::object({{"op", "copy"}, {"from", "/a"}, {"path", "/a/-"}}));
  }
  const Status status = json_patch(target, operations);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(dump(target), R"({"a":[1]})");
}

TEST(JsonPatch, CopiesOfLongTextsAreBounded) {
  const Value before = Value::object({{"a", std::string(1U << 20U, 'x')}});
  const auto copied = [&](int times) {
    Value operations = Value::array();
    for (int i = 0; i < times; ++i) {
      operations.push_back(
          Value::object({{"op", "copy"}, {"from", "/a"}, {"path", "/b" + std::to_string(i)}}));
    }
    Value target = before;
    const Status status = json_patch(target, operations);
    EXPECT_EQ(target == before, !status.ok());
    return status.ok();
  };
  EXPECT_TRUE(copied(10));
  EXPECT_FALSE(copied(100));
}

}  // namespace
}  // namespace rubato::json
