// tests/data/bad_manifests.yaml against the in-memory API server with our CRDs and native rules.
// tests/integration/test_bad_manifests.py holds the real API server to the same file.
#include "tests/unit/api/memory_plane.h"
#include "tests/unit/api/yaml_value.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace rubato::api {
namespace {

using json::Value;

const Value& book() {
  static const Value kBook = [] {
    auto value = read_yaml("tests/data/bad_manifests.yaml");
    CHECK(value.ok());
    return *value;
  }();
  return kBook;
}

class BadManifests : public testing::Test {
 protected:
  BadManifests() {
    for (const auto& [name, manifest] : book()["good"].members())
      CHECK(plane_.create(manifest, false).ok());
  }

  kube::Answer<kube::Written> attempt(const Value& test) {
    const Value& good = book()["good"][test["kind"].string_or("TrainingJob")];
    if (test.has("create")) {
      Value manifest = good;
      json::merge_patch(manifest, test["create"]);
      if (kube::name_of(manifest) == kube::name_of(good) &&
          good["kind"].string_or("") != "TrainingQueue")
        manifest.at("metadata").set("name", kube::name_of(good) + "-2");
      return plane_.create(manifest, true);
    }
    if (test.has("update")) return plane_.patch(good, test["update"], "", true);
    const Value seen = Value::object({{"status", test["seen"]}});
    CHECK(plane_.patch(good, seen, "status", false).ok());
    return plane_.patch(good, Value::object({{"status", test["status"]}}), "status", true);
  }

  MemoryPlane plane_;
};

std::string sorted_lines(std::vector<std::string> lines) {
  std::sort(lines.begin(), lines.end());
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

TEST_F(BadManifests, AreRefusedWithTheWordsOfTheRealServer) {
  for (const Value& test : book()["cases"].items()) {
    SCOPED_TRACE(test["name"].string_or(""));
    const auto answer = attempt(test);
    if (test.has("unknown")) {
      ASSERT_FALSE(answer.ok());
      EXPECT_EQ(answer.error().code, 400);
      for (const Value& field : test["unknown"].items())
        EXPECT_NE(answer.error().message.find("unknown field \"" + field.string_or("") + "\""),
                  std::string::npos)
            << answer.error().message;
      continue;
    }
    std::vector<std::string> wanted;
    for (const Value& cause : test["causes"].items()) wanted.push_back(cause.string_or(""));
    if (!answer.ok()) {
      EXPECT_EQ(answer.error().code, 422) << answer.error().message;
    }
    EXPECT_EQ(sorted_lines(causes_of(answer)), sorted_lines(wanted));
  }
}

// How a server says what would do: a rule's words after ';', "such as", or what is asked for.
bool says_the_way_out(const std::string& cause) {
  for (const char* words :
       {"; ", " such as ", " must be ", " should be ", " should have at least ",
        " must have at most ", "must consist of ", "supported values: ", "Required value",
        "may not be more than ", "Duplicate value: ", ", expected ", "should match '^auto$'"})
    if (cause.find(words) != std::string::npos) return true;
  return false;
}

TEST(Book, HasManyMistakesAndEachSaysFieldAndWayOut) {
  std::set<std::string> names;
  std::size_t refused = 0;
  for (const Value& test : book()["cases"].items()) {
    const std::string name = test["name"].string_or("");
    EXPECT_TRUE(names.insert(name).second) << name << " is there twice";
    refused += test.has("unknown") || test["causes"].size() > 0 ? 1 : 0;
    for (const Value& cause : test["causes"].items())
      EXPECT_TRUE(says_the_way_out(cause.string_or(""))) << name << ": " << cause.string_or("");
  }
  EXPECT_GE(refused, 200u);
}

TEST(Book, MeetsEveryRule) {
  std::string all;
  for (const Value& test : book()["cases"].items())
    for (const Value& cause : test["causes"].items()) all += cause.string_or("") + "\n";
  for (const Rule& rule : rules()) {
    std::string path = rule.scope;
    if (const std::size_t list = path.find("[]"); list != std::string::npos)
      path.replace(list, 2, "[0]");
    path += path.empty() ? rule.field.substr(1) : rule.field;
    EXPECT_NE(all.find(path + ": Invalid value: " + rule.message + "\n"), std::string::npos)
        << "no bad manifest breaks rule " << rule.id;
  }
}

}  // namespace
}  // namespace rubato::api
