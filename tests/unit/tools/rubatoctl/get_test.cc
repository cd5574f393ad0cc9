#include "tools/rubatoctl/objects.h"

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

struct CheckedOptions : ::testing::Test {
  static std::string refusal(const GetOptions& options) {
    const auto checked = checked_options(options);
    return checked.ok() ? "" : checked.error().what();
  }
};

TEST_F(CheckedOptions, TakeTheNameBehindASlash) {
  const auto checked = checked_options({.resource = "tj/a", .names = {"b"}});
  ASSERT_TRUE(checked.ok());
  EXPECT_EQ(checked->resource, "tj");
  EXPECT_EQ(checked->names, (std::vector<std::string>{"a", "b"}));
}

TEST_F(CheckedOptions, RefuseWhatWouldNotBeActedOn) {
  for (const char* output : {"json", "yaml", "name"})
    EXPECT_NE(refusal({.output = output, .watch = true}).find("-w follows the table"),
              std::string::npos);
  EXPECT_NE(refusal({.names = {"a", "b"}, .watch = true}).find("-w follows one object"),
            std::string::npos);
  EXPECT_NE(refusal({.names = {"a"}, .selector = "x=y"}).find("or by -l"), std::string::npos);
  EXPECT_NE(refusal({.resource = "tj/a", .all_namespaces = true}).find("with -n"),
            std::string::npos);
  EXPECT_NE(refusal({.resource = "tj/"}).find("may not be empty"), std::string::npos);
  for (const GetOptions& good :
       {GetOptions{.names = {"a"}, .watch = true}, GetOptions{.output = "wide", .watch = true},
        GetOptions{.selector = "x=y", .watch = true, .all_namespaces = true},
        GetOptions{.names = {"a", "b"}, .output = "json"}})
    EXPECT_EQ(refusal(good), "");
}

TEST(ReadTable, GoesFromPageToPage) {
  std::vector<std::string> asked;
  const Fetch fetch = [&](const std::string& path) -> Result<std::string> {
    asked.push_back(path);
    if (asked.size() == 3) return Error(Code::kUnavailable, "away");
    const std::string more = asked.size() == 1 ? R"(,"continue":"next&")" : "";
    return R"({"metadata":{"resourceVersion":"7")" + more + R"(},"rows":[{"cells":[)" +
           std::to_string(asked.size()) + "]}]}";
  };
  std::vector<std::int64_t> rows;
  const auto take = [&](const json::Value& table) {
    rows.push_back(table["rows"][0]["cells"][0].int_or(0));
  };
  EXPECT_EQ(read_table(fetch, "/pods", {.label_selector = "a=b"}, take).value(), "7");
  EXPECT_EQ(rows, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(asked,
            (std::vector<std::string>{"/pods?labelSelector=a%3Db&limit=500",
                                      "/pods?labelSelector=a%3Db&limit=500&continue=next%26"}));
  EXPECT_EQ(read_table(fetch, "/pods", {}, take).error().what(), "away");
}

}  // namespace
}  // namespace rubato::ctl
