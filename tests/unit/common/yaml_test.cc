#include "common/yaml.h"

#include <fstream>

#include <gtest/gtest.h>

namespace rubato {
namespace {

std::string as_json(const char* text) {
  const auto value = yaml::parse(text);
  return value.ok() ? json::dump(*value) : value.error().what();
}

TEST(Yaml, TypesScalarsAsKubernetesDoes) {
  EXPECT_EQ(as_json("a: 1\nb: '1'\nc: true\nd: \"true\"\ne: 0644\nf: 1.5\ng: ~\nh: 08x\ni: -3"),
            R"({"a":1,"b":"1","c":true,"d":"true","e":420,"f":1.5,"g":null,"h":"08x","i":-3})");
  EXPECT_EQ(as_json("v: 1.0.0\nq: 500m\nr: 1e3"), R"({"v":"1.0.0","q":"500m","r":1000})");
}

// tests/integration/test_yaml.py asks kubectl for the same.
TEST(Yaml, ReadsEachScalarAsKubectlDoes) {
  std::ifstream file("tests/data/yaml_scalars.txt");
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    ++cases;
    const std::size_t tab = line.find('\t');
    ASSERT_NE(tab, std::string::npos) << line;
    const auto ours = yaml::parse(line.substr(0, tab));
    if (line.substr(tab + 1) == "refused") {
      EXPECT_FALSE(ours.ok()) << line;
      continue;
    }
    ASSERT_TRUE(ours.ok()) << line << ": " << ours.error().what();
    // kubectl's numbers pass through JSON once more: that decides which are integers.
    EXPECT_EQ(*ours, json::parse(line.substr(tab + 1)).value()) << line;
  }
  EXPECT_GT(cases, 100);
}

TEST(Yaml, ReadsJsonListsAndSeveralDocuments) {
  EXPECT_EQ(as_json(R"({"a": [1, {"b": "c"}]})"), R"({"a":[1,{"b":"c"}]})");
  const auto all = yaml::parse_all("---\na: 1\n---\n---\nb: 2\n");
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->size(), 2U);
}

TEST(Yaml, NamesThePlaceOfAFault) {
  EXPECT_NE(as_json("a: [1").find("line 1"), std::string::npos);
  EXPECT_EQ(as_json("a: 1\nb: {{name}}"), "YAML: line 2: keys must be plain words");
}

TEST(Yaml, MergesMapsAsKubectlDoes) {
  const std::string maps = "x: &x {a: 1, b: 2}\ny: &y {b: 3, c: 4}\n";
  const auto z = [&](const std::string& text) -> std::string {
    const auto value = yaml::parse(maps + "z: " + text);
    return value.ok() ? json::dump((*value)["z"]) : value.error().what();
  };
  EXPECT_EQ(z("{<<: *x, a: 5}"), R"({"a":5,"b":2})");
  EXPECT_EQ(z("{a: 5, <<: [*x, *y]}"), R"({"a":1,"b":2,"c":4})");
  EXPECT_EQ(z("{<<: *x, <<: *y}"), R"({"a":1,"b":3,"c":4})");
  EXPECT_EQ(z("{'<<': *x}"), R"({"<<":{"a":1,"b":2}})");
  for (const char* wrong : {"{<<: 7}", "{<<: [[*x]]}"})
    EXPECT_EQ(z(wrong), "YAML: line 3: what << names is neither a map nor a list of maps");
}

// yaml-cpp's LoadAll never returns from these; found by `make fuzz`.
TEST(Yaml, RefusesWhatBeginsNothing) {
  EXPECT_EQ(as_json(","), "YAML: line 1, column 1: nothing begins with this");
  EXPECT_EQ(as_json("a: 1\n---\n, b\n"), "YAML: line 3, column 1: nothing begins with this");
}

TEST(Yaml, RefusesWhatIsNoText) {
  EXPECT_EQ(as_json("a: 1\nb: \xdf\xdf"), "YAML: line 2 is not UTF-8: is this a text file?");
  EXPECT_EQ(as_json("a: \x04"), "YAML: line 1 has a control character: is this a text file?");
  EXPECT_EQ(as_json("a: \xc3\xa9\t\r\n"), "{\"a\":\"\xc3\xa9\"}");
}

}  // namespace
}  // namespace rubato
