// tests/data/bad_manifests.yaml against the in-memory API server with our CRDs and native rules.
// tests/integration/test_bad_manifests.py holds the real API server to the same file.
#include "operator/api/crd.h"
#include "operator/api/rules.h"
#include "operator/kube/memory/memory_server.h"
#include "tests/unit/api/yaml_value.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace rubato::api {
namespace {

using json::Value;

const Value& book() {
  static const Value book = [] {
    auto value = read_yaml("tests/data/bad_manifests.yaml");
    CHECK(value.ok());
    return *value;
  }();
  return book;
}

class BadManifests : public testing::Test {
 protected:
  BadManifests() : server_(clock_) {
    for (const Kind& kind : kinds()) {
      const auto made = server_.create(kube::types::kCustomResourceDefinition, "", crd(kind));
      CHECK(made.ok());
      server_.set_validator(kind.type.plural + "." + kind.type.group,
                            [name = kind.type.kind](const Value& old, const Value& now) {
                              std::vector<kube::RuleFailure> out;
                              for (const Violation& found : validate(name, old, now))
                                out.push_back({found.field, found.message});
                              return out;
                            });
    }
    for (const auto& [name, manifest] : book()["good"].members()) {
      const auto made = create(*find_kind(name), manifest, false);
      CHECK(made.ok());
    }
  }

  kube::Answer<kube::Written> create(const Kind& kind, const Value& manifest, bool dry_run) {
    kube::WriteOptions options;
    options.dry_run = dry_run;
    options.field_validation = "Strict";
    return server_.create(kind.type, kind.type.namespaced ? "default" : "", manifest, options);
  }

  kube::Answer<kube::Written> patch(const Kind& kind, const Value& body,
                                    const std::string& subresource, bool dry_run) {
    kube::WriteOptions options;
    options.dry_run = dry_run;
    options.field_validation = "Strict";
    options.subresource = subresource;
    const kube::Key key = kube::key_of(book()["good"][kind.type.kind]);
    return server_.patch(kind.type, key, kube::PatchType::kMerge, body, options);
  }

  kube::Answer<kube::Written> attempt(const Value& test) {
    const Kind& kind = *find_kind(test["kind"].string_or("TrainingJob"));
    if (test.has("create")) {
      Value manifest = book()["good"][kind.type.kind];
      const std::string name = kube::name_of(manifest);
      json::merge_patch(manifest, test["create"]);
      if (kube::name_of(manifest) == name && kind.type.kind != "TrainingQueue")
        manifest.at("metadata").set("name", name + "-2");
      return create(kind, manifest, true);
    }
    if (test.has("update")) return patch(kind, test["update"], "", true);
    CHECK(patch(kind, Value::object({{"status", test["seen"]}}), "status", false).ok());
    return patch(kind, Value::object({{"status", test["status"]}}), "status", true);
  }

  SystemClock clock_;
  kube::MemoryServer server_;
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
    std::vector<std::string> seen;
    if (!answer.ok()) {
      EXPECT_EQ(answer.error().code, 422) << answer.error().message;
      for (const Value& cause : answer.error().details["causes"].items())
        seen.push_back(cause["field"].string_or("") + ": " + cause["message"].string_or(""));
    }
    EXPECT_EQ(sorted_lines(seen), sorted_lines(wanted));
  }
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
