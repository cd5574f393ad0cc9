#include "tools/localnode/downward_api.h"

#include <gtest/gtest.h>

namespace rubato::localnode {
namespace {

using json::Value;

const Value& example_pod() {
  static const Value pod = json::parse(R"json({
      "metadata": {"labels": {"b": "2", "a": "say \"1\""}, "annotations": {}},
      "spec": {"containers": [
                 {"name": "worker", "resources": {"limits": {"cpu": "1500m", "memory": "1Gi"}}},
                 {"name": "other", "resources": {"requests": {"cpu": 2}}}],
               "initContainers": [{"name": "first", "resources": {"limits": {"cpu": "250m"}}}]},
      "status": {"podIP": "127.0.0.2", "hostIP": "127.0.0.1"}})json")
                               .value();
  return pod;
}

TEST(DownwardApi, ListsOfAddressesAreOfOne) {
  EXPECT_EQ(field_of(example_pod(), "status.hostIPs").value(), "127.0.0.1");
  EXPECT_EQ(field_of(example_pod(), "status.podIPs").value(), "127.0.0.2");
}

TEST(DownwardApi, AFileHasAllLabelsOrAnnotations) {
  const auto file = [](const char* item) {
    return downward_file(example_pod(), json::parse(item).value()).value();
  };
  EXPECT_EQ(file(R"({"fieldRef": {"fieldPath": "metadata.labels"}})"),
            "a=\"say \\\"1\\\"\"\nb=\"2\"");
  EXPECT_EQ(file(R"({"fieldRef": {"fieldPath": "metadata.annotations"}})"), "");
  EXPECT_EQ(file(R"({"fieldRef": {"fieldPath": "metadata.labels['b']"}})"), "2");
  EXPECT_EQ(file(R"({"resourceFieldRef": {"containerName": "worker", "resource": "limits.cpu"}})"),
            "2");
}

TEST(DownwardApi, ResourcesAreRoundedUpInUnitsOfTheDivisor) {
  struct Case {
    const char* container;
    const char* ref;
    const char* expected;
  };
  const Case cases[] = {
      {"worker", R"({"resource": "limits.memory"})", "1073741824"},
      {"worker", R"({"resource": "limits.memory", "divisor": "1Mi"})", "1024"},
      {"worker", R"({"resource": "limits.memory", "divisor": "0"})", "1073741824"},
      {"worker", R"({"resource": "limits.cpu", "divisor": "1m"})", "1500"},
      {"worker", R"({"resource": "requests.cpu"})", "2"},
      {"worker", R"({"resource": "requests.ephemeral-storage"})", "0"},
      {"worker", R"({"resource": "requests.cpu", "containerName": "other"})", "2"},
      {"first", R"({"resource": "limits.cpu"})", "1"}};
  for (const Case& c : cases)
    EXPECT_EQ(resource_of(example_pod(), c.container, json::parse(c.ref).value()).value(),
              c.expected)
        << c.container << " " << c.ref;
}

TEST(DownwardApi, WhatIsNotSetIsNamed) {
  const auto refused = [](const char* container, const char* ref) {
    const auto found = resource_of(example_pod(), container, json::parse(ref).value());
    return found.ok() || found.error().code() != Code::kInvalid ? "" : found.error().what();
  };
  const std::string missing = refused("other", R"({"resource": "limits.memory"})");
  EXPECT_NE(missing.find("limits.memory of container \"other\""), std::string::npos) << missing;
  EXPECT_NE(refused("", R"({"resource": "limits.cpu"})").find("set containerName"),
            std::string::npos);
  EXPECT_NE(refused("worker", R"({"resource": "cpu"})").find("name limits or requests"),
            std::string::npos);
}

}  // namespace
}  // namespace rubato::localnode
