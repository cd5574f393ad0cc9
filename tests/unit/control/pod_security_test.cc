#include "operator/control/pod_security.h"

#include "tests/unit/control/fixtures.h"

namespace rubato::control {
namespace {

json::Value secured(const std::string& pod_spec, std::size_t worker = 0) {
  json::Value spec = parse(pod_spec);
  apply_pod_security(spec, worker);
  return spec;
}

TEST(PodSecurity, SilentTemplateBecomesRestricted) {
  EXPECT_EQ(secured(R"({"containers":[{"name":"worker"}]})"), parse(R"({
    "containers":[{"name":"worker",
      "securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]},
                         "readOnlyRootFilesystem":true},
      "volumeMounts":[{"name":"rubato-tmp","mountPath":"/tmp"}]}],
    "volumes":[{"name":"rubato-tmp","emptyDir":{}}],
    "securityContext":{"runAsNonRoot":true,"fsGroup":65532,"fsGroupChangePolicy":"OnRootMismatch",
                       "seccompProfile":{"type":"RuntimeDefault"}}})"));
}

TEST(PodSecurity, ApplyingItTwiceChangesNothing) {
  json::Value once = secured(R"({"containers":[{"name":"worker"}]})");
  json::Value twice = once;
  apply_pod_security(twice, 0);
  EXPECT_EQ(once, twice);
}

TEST(PodSecurity, WhatTheTemplateSaysStays) {
  const json::Value spec = secured(R"({
    "securityContext":{"runAsNonRoot":false,"fsGroup":7,"seccompProfile":{"type":"Localhost"}},
    "containers":[{"name":"worker","securityContext":{"readOnlyRootFilesystem":false,
      "allowPrivilegeEscalation":true,"capabilities":{"drop":["NET_RAW"],"add":["IPC_LOCK"]}}}]})");
  const json::Value& pod = spec["securityContext"];
  EXPECT_FALSE(pod["runAsNonRoot"].bool_or(true));
  EXPECT_EQ(pod["fsGroup"].int_or(0), 7);
  EXPECT_EQ(pod["seccompProfile"]["type"].string_or(""), "Localhost");
  EXPECT_EQ(spec["containers"][0]["securityContext"],
            parse(R"({"readOnlyRootFilesystem":false,"allowPrivilegeEscalation":true,
                      "capabilities":{"drop":["NET_RAW"],"add":["IPC_LOCK"]}})"));
  EXPECT_TRUE(spec["volumes"].is_null());
}

TEST(PodSecurity, RootIsPossibleForThoseWhoAskForIt) {
  const json::Value whole =
      secured(R"({"securityContext":{"runAsUser":0},"containers":[{"name":"worker"}]})");
  EXPECT_TRUE(whole["securityContext"]["runAsNonRoot"].is_null());
  const json::Value init = secured(R"({"initContainers":[{"name":"i","securityContext":
    {"runAsUser":0}}],"containers":[{"name":"worker"}]})");
  EXPECT_TRUE(init["securityContext"]["runAsNonRoot"].is_null());
}

TEST(PodSecurity, PrivilegedContainersAreLeftAlone) {
  const std::string context = R"({"privileged":true})";
  const json::Value spec =
      secured(R"({"containers":[{"name":"worker","securityContext":)" + context + "}]}");
  EXPECT_EQ(spec["containers"][0]["securityContext"], parse(context));
  const json::Value admin = secured(R"({"containers":[{"name":"worker","securityContext":
    {"capabilities":{"add":["SYS_ADMIN"]}}}]})");
  EXPECT_TRUE(admin["containers"][0]["securityContext"]["allowPrivilegeEscalation"].is_null());
}

TEST(PodSecurity, OtherContainersKeepTheirRootFileSystem) {
  const json::Value spec = secured(
      R"({"initContainers":[{"name":"fetch"}],"containers":[{"name":"side"},{"name":"worker"}]})",
      1);
  EXPECT_TRUE(spec["containers"][1]["securityContext"]["readOnlyRootFilesystem"].bool_or(false));
  for (const json::Value& other : {spec["containers"][0], spec["initContainers"][0]}) {
    EXPECT_TRUE(other["securityContext"]["readOnlyRootFilesystem"].is_null());
    EXPECT_EQ(other["securityContext"]["capabilities"]["drop"][0].string_or(""), "ALL");
  }
}

TEST(PodSecurity, TmpOfTheTemplateIsKept) {
  const json::Value spec = secured(R"({"containers":[{"name":"worker",
    "volumeMounts":[{"name":"scratch","mountPath":"/tmp"}]}],
    "volumes":[{"name":"scratch","emptyDir":{"medium":"Memory"}}]})");
  EXPECT_EQ(spec["volumes"].size(), 1u);
  EXPECT_EQ(spec["containers"][0]["volumeMounts"].size(), 1u);
}

}  // namespace
}  // namespace rubato::control
