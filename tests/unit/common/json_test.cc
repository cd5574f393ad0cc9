#include "common/json.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace rubato::json {
namespace {

Value read(std::string_view text) {
  auto value = parse(text);
  EXPECT_TRUE(value.ok()) << text;
  return value.value_or(Value());
}

TEST(Json, ReadsTypesAndMissingMembersAsNull) {
  const Value v = read(R"({"a":{"b":[1,2.5,"x",true,null]},"n":-7})");
  EXPECT_EQ(v["a"]["b"][0].int_or(0), 1);
  EXPECT_EQ(v["a"]["b"][1].double_or(0), 2.5);
  EXPECT_EQ(v["a"]["b"][0].double_or(0), 1.0);
  EXPECT_EQ(v["a"]["b"][1].int_or(9), 9);
  EXPECT_EQ(v["a"]["b"][2].string_or(""), "x");
  EXPECT_TRUE(v["a"]["b"][3].bool_or(false));
  EXPECT_TRUE(v["a"]["b"][4].is_null());
  EXPECT_TRUE(v["a"]["b"][5].is_null());
  EXPECT_EQ(v["x"]["y"][3]["z"].int_or(1), 1);
  EXPECT_FALSE(v.has("x"));
  EXPECT_EQ(v.size(), 2u);
  EXPECT_EQ(v["n"].size(), 0u);
}

TEST(Json, CopiesShareUntilWritten) {
  Value a = read(R"({"list":[1,2],"o":{"k":1}})");
  Value b = a;
  EXPECT_EQ(&a["list"].items(), &b["list"].items());
  b.at("list").push_back(3);
  b.at("o").set("k", 2);
  EXPECT_EQ(dump(a), R"({"list":[1,2],"o":{"k":1}})");
  EXPECT_EQ(dump(b), R"({"list":[1,2,3],"o":{"k":2}})");
  const Value moved = std::move(a);
  a = 1;
  EXPECT_EQ(moved["list"].size(), 2u);
}

TEST(Json, AMovedFromValueReadsAsEmpty) {
  Value a = Value::object({{"k", 1}});
  const Value b = std::move(a);
  EXPECT_EQ(a.size(), 0u);  // NOLINT: what this test is about
  EXPECT_TRUE(a["k"].is_null());
  a.set("k", 2);
  EXPECT_EQ(b["k"].int_or(0), 1);
}

TEST(Json, BuildsAndErases) {
  Value v;
  v.set("b", 1).set("a", Value::array({1, "two", nullptr}));
  v.at("c").at("d") = 2.0;
  EXPECT_EQ(dump(v), R"({"b":1,"a":[1,"two",null],"c":{"d":2.0}})");
  EXPECT_TRUE(v.erase("a"));
  EXPECT_FALSE(v.erase("a"));
  v.at("list").push_back(Value());
  v.at("list").at(0) = false;
  EXPECT_EQ(dump(v), R"({"b":1,"c":{"d":2.0},"list":[false]})");
}

TEST(JsonDeathTest, WritingIntoAScalarIsABrokenInvariant) {
  Value v = 1;
  EXPECT_DEATH(v.set("a", 1), "CHECK failed");
  EXPECT_DEATH(Value::array({1}).at(1), "CHECK failed");
}

TEST(Json, EqualityIgnoresOrderButNotNumberTypes) {
  EXPECT_EQ(read(R"({"a":1,"b":[{}]})"), read(R"({"b":[{}],"a":1})"));
  EXPECT_FALSE(read("1") == read("1.0"));
  EXPECT_FALSE(read("[1,2]") == read("[2,1]"));
  EXPECT_FALSE(read(R"({"a":1})") == read(R"({"b":1})"));
  Value forward;
  Value backward;
  for (int i = 0; i < 100; ++i) {
    forward.set("k" + std::to_string(i), i);
    backward.set("k" + std::to_string(99 - i), 99 - i);
  }
  EXPECT_EQ(forward, backward);
  backward.set("k50", 0);
  EXPECT_FALSE(forward == backward);
}

TEST(Json, TheLastDuplicateKeyWins) {
  EXPECT_EQ(dump(read(R"({"a":1,"b":2,"a":3})")), R"({"a":3,"b":2})");
  std::string many = "{";
  for (int i = 0; i < 1000; ++i)
    many += "\"k" + std::to_string(i % 10) + "\":" + std::to_string(i) + ",";
  many.back() = '}';
  EXPECT_EQ(read(many).size(), 10u);
  EXPECT_EQ(read(many)["k9"].int_or(0), 999);
}

TEST(Json, DuplicateKeysAreRefusedWhereThatIsAskedFor) {
  const auto error = [](const char* text) {
    const auto read = parse(text, {.refuses_duplicates = true});
    return read.ok() ? "" : read.error().what();
  };
  EXPECT_EQ(error(R"({"a":[{"b":1},{"b":2}],"b":3})"), "");
  EXPECT_EQ(error(R"({"a":1,"b":2,"a":3})"),
            "JSON: the document has \"a\" twice; write each field once");
  EXPECT_EQ(error(R"({"a":[{},{"b":{"c":1,"c":1}}]})"),
            "JSON: a[1].b has \"c\" twice; write each field once");
  EXPECT_EQ(error(R"({"\u001b[31m\u000a":1,"\u001b[31m\u000a":2})"),
            "JSON: the document has \" [31m \" twice; write each field once");
  std::string many = "{\"k3\":0";
  for (int i = 0; i < 20; ++i) many += ",\"k" + std::to_string(i) + "\":0";
  EXPECT_EQ(error((many + "}").c_str()),
            "JSON: the document has \"k3\" twice; write each field once");
}

TEST(Json, NumbersKeepTheirValue) {
  EXPECT_EQ(read("9223372036854775807").int_or(0), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(read("-9223372036854775808").int_or(0), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(read("9223372036854775808").type(), Value::Type::kDouble);
  for (const double d : {0.1, 1.0, -0.0, 1e21, 5e-324, 1.7976931348623157e308, 3.14159, 100.0}) {
    const Value back = read(dump(d));
    EXPECT_EQ(back.type(), Value::Type::kDouble) << dump(d);
    EXPECT_EQ(back.double_or(-1), d);
    EXPECT_EQ(std::signbit(back.double_or(-1)), std::signbit(d));
  }
  EXPECT_EQ(dump(1.0), "1.0");
  EXPECT_EQ(dump(std::nan("")), "null");
  EXPECT_EQ(dump(std::numeric_limits<double>::infinity()), "null");
}

TEST(Json, StringsAreEscapedAndRepaired) {
  EXPECT_EQ(dump(std::string("a\"\\\n\t\x01\x7f/\0z", 10)),
            "\"a\\\"\\\\\\n\\t\\u0001\x7f/\\u0000z\"");
  EXPECT_EQ(read(R"("\u00e9\ud83d\ude00")").string_or(""), "é😀");
  EXPECT_EQ(dump("é😀"), "\"é😀\"");
  EXPECT_EQ(dump("a\xff"
                 "b"),
            "\"a\xef\xbf\xbd"
            "b\"");
  EXPECT_EQ(dump("\xed\xa0\x80"), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");  // a surrogate
  EXPECT_EQ(dump("\xc0\xaf"), "\"\xef\xbf\xbd\xef\xbf\xbd\"");                  // overlong
  EXPECT_EQ(dump("\xe2\x82"), "\"\xef\xbf\xbd\xef\xbf\xbd\"");                  // cut short
}

TEST(Json, Indents) {
  EXPECT_EQ(dump(read(R"({"a":[1,{}],"b":[]})"), 2),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}");
}

TEST(Json, RefusesWithTheOffset) {
  for (const char* text : {"", "{", "[1,]", "{\"a\"}", "01", "nul", "\"\xff\"", "\"\\ud800\"",
                           "1 2", "{'a':1}", "[1]x", "1e400", "\"a\nb\"", "+1", "NaN"}) {
    const auto value = parse(text);
    ASSERT_FALSE(value.ok()) << text;
    EXPECT_EQ(value.error().code(), Code::kInvalid);
    EXPECT_NE(value.error().what().find("at offset "), std::string::npos) << value.error().what();
  }
}

TEST(Json, RefusesWithTheFieldThatWasRead) {
  const auto error = [](const char* text) { return parse(text).error().what(); };
  EXPECT_TRUE(error(R"({"jobs":[{},{"gpus":{"min":1,"max":1e999}}]})")
                  .starts_with("JSON, at jobs[1].gpus.max: "));
  EXPECT_TRUE(error(R"({"a":1,"b":NaN})").starts_with("JSON, at b: "));
  EXPECT_TRUE(error(R"([1,[2,"\ud800"]])").starts_with("JSON, at [1][1]: "));
  EXPECT_TRUE(error("{").starts_with("JSON: "));
  EXPECT_TRUE(error("nul").starts_with("JSON: "));
}

TEST(Json, DepthAndSizeAreBounded) {
  const std::string deep(65, '[');
  const auto too_deep = parse("{\"s\":\"[[[\\\"\",\"d\":" + deep);
  ASSERT_FALSE(too_deep.ok());
  EXPECT_NE(too_deep.error().what().find("deeper than 64 (at offset 80)"), std::string::npos)
      << too_deep.error().what();
  EXPECT_TRUE(parse(std::string(64, '[') + std::string(64, ']')).ok());
  EXPECT_FALSE(parse("[1,2]", {.bytes = 4}).ok());
  EXPECT_TRUE(parse("[1,2]", {.bytes = 5}).ok());
}

}  // namespace
}  // namespace rubato::json
