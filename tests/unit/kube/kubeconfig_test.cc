#include "kube/kubeconfig.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

namespace rubato::kube {
namespace {

namespace fs = std::filesystem;

struct Kubeconfig : ::testing::Test {
  Kubeconfig() {
    folder = fs::path(::testing::TempDir()) / ("kubeconfig-" + std::to_string(getpid()));
    fs::create_directories(folder);
  }
  ~Kubeconfig() override { fs::remove_all(folder); }
  std::string file(const std::string& name, const std::string& text) {
    std::ofstream(folder / name) << text;
    return (folder / name).string();
  }
  static KubeconfigOptions from(const std::string& path, const std::string& context = "") {
    KubeconfigOptions options;
    options.path = path;
    options.context = context;
    return options;
  }
  fs::path folder;
};

constexpr const char* kTwoClusters = R"(
apiVersion: v1
kind: Config
current-context: one
clusters:
- name: c1
  cluster: {server: "https://127.0.0.1:6443", certificate-authority: ca.crt, tls-server-name: api}
- name: c2
  cluster: {server: "https://[::1]:1", certificate-authority-data: aGVsbG8=, insecure-skip-tls-verify: true}
users:
- name: u1
  user: {client-certificate-data: Y2VydA==, client-key: sub/key.pem}
- name: u2
  user: {tokenFile: token, as: robot, as-groups: [g1, g2]}
contexts:
- name: one
  context: {cluster: c1, user: u1, namespace: team-a}
- name: two
  context: {cluster: c2, user: u2}
- name: broken
  context: {cluster: c9, user: u1}
)";

TEST_F(Kubeconfig, CurrentContext) {
  const auto config = load_kubeconfig(from(file("config", kTwoClusters)));
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->server, "https://127.0.0.1:6443");
  EXPECT_EQ(config->tls_server_name, "api");
  EXPECT_EQ(config->default_namespace, "team-a");
  EXPECT_EQ(config->credentials.authority.file, (folder / "ca.crt").string());
  EXPECT_EQ(config->credentials.certificate.text, "cert");
  EXPECT_EQ(config->credentials.private_key.file, (folder / "sub/key.pem").string());
}

TEST_F(Kubeconfig, NamedContext) {
  const auto config = load_kubeconfig(from(file("config", kTwoClusters), "two"));
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_TRUE(config->insecure_skip_tls_verify);
  EXPECT_EQ(config->credentials.authority.text, "hello");
  EXPECT_EQ(config->credentials.token.file, (folder / "token").string());
  using Headers = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(config->headers, (Headers{{"Impersonate-User", "robot"},
                                      {"Impersonate-Group", "g1"},
                                      {"Impersonate-Group", "g2"}}));
}

TEST_F(Kubeconfig, Faults) {
  const std::string path = file("config", kTwoClusters);
  EXPECT_EQ(load_kubeconfig(from(path, "broken")).error().what(),
            "kubeconfig: no cluster \"c9\"; it has c1, c2");
  EXPECT_EQ(load_kubeconfig(from(path, "missing")).error().what(),
            "kubeconfig: no context \"missing\"; it has broken, one, two");
  EXPECT_EQ(load_kubeconfig(from(file("empty", "clusters: []\n"))).error().what(),
            "kubeconfig: no current-context; of contexts it has none");
  EXPECT_EQ(load_kubeconfig(from((folder / "none").string())).error().code(), Code::kNotFound);
  EXPECT_EQ(load_kubeconfig(from(file("bad", "a: [b"))).error().code(), Code::kInvalid);
  EXPECT_EQ(load_kubeconfig(from(file("list", "- 1\n- 2\n"))).error().code(), Code::kInvalid);
  EXPECT_EQ(load_kubeconfig(from(file("proxy", R"(
current-context: x
clusters: [{name: c, cluster: {server: "https://a", proxy-url: "http://p"}}]
contexts: [{name: x, context: {cluster: c}}]
)")))
                .error()
                .code(),
            Code::kInvalid);
}

// The first file that names something wins; a file of the list that is missing is passed over.
TEST_F(Kubeconfig, ListIsMerged) {
  const std::string first = file("first", R"(
clusters: [{name: c1, cluster: {server: "https://first"}}]
contexts: [{name: x, context: {cluster: c1, user: u1}}]
)");
  const std::string second = file("second", kTwoClusters);
  setenv("KUBECONFIG", (first + ":" + (folder / "none").string() + ":" + second).c_str(), 1);
  const auto config = load_kubeconfig(from("", "x"));
  unsetenv("KUBECONFIG");
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->server, "https://first");
  EXPECT_EQ(config->credentials.certificate.text, "cert");
}

// A folder can be opened, and has no bytes: it must not be taken for an empty file.
TEST_F(Kubeconfig, WhatCannotBeReadIsNoEmptyFile) {
  const Error refused = load_kubeconfig(from(folder.string())).error();
  EXPECT_EQ(refused.code(), Code::kInvalid);
  EXPECT_NE(refused.what().find("Is a directory"), std::string::npos) << refused.what();
  SystemClock clock;
  CredentialConfig config;
  config.authority.file = folder.string();
  EXPECT_EQ(Credentials(clock, config).get().error().code(), Code::kInvalid);
}

// The cluster of the pod has no contexts: one that is named is looked for where there are some.
TEST_F(Kubeconfig, ANamedContextIsNotTheClusterOfThePod) {
  file("token", "t0\n");
  unsetenv("KUBECONFIG");
  setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1", 1);
  setenv("KUBERNETES_SERVICE_PORT", "443", 1);
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  setenv("HOME", folder.c_str(), 1);
  const auto code = [&] { return default_config(from("", "two"), folder.string()).error().code(); };
  EXPECT_EQ(default_config({}, folder.string())->server, "https://10.0.0.1:443");
  EXPECT_EQ(code(), Code::kNotFound);
  fs::create_directories(folder / ".kube");
  file(".kube/config", "a: b\n");
  EXPECT_EQ(code(), Code::kInvalid);
  file(".kube/config", kTwoClusters);
  EXPECT_EQ(default_config(from("", "two"), folder.string())->server, "https://[::1]:1");
  setenv("HOME", home.c_str(), 1);
  unsetenv("KUBERNETES_SERVICE_HOST");
  unsetenv("KUBERNETES_SERVICE_PORT");
}

TEST_F(Kubeconfig, InACluster) {
  file("token", "t0\n");
  file("ca.crt", "ca");
  file("namespace", "ns-1");
  EXPECT_EQ(in_cluster_config(folder.string()).error().code(), Code::kNotFound);
  setenv("KUBERNETES_SERVICE_HOST", "fd00::1", 1);
  setenv("KUBERNETES_SERVICE_PORT", "443", 1);
  const auto config = in_cluster_config(folder.string());
  unsetenv("KUBERNETES_SERVICE_HOST");
  unsetenv("KUBERNETES_SERVICE_PORT");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->server, "https://[fd00::1]:443");
  EXPECT_EQ(config->default_namespace, "ns-1");

  SystemClock clock;
  Credentials credentials(clock, config->credentials);
  EXPECT_EQ(credentials.get()->authorization, "Bearer t0");
  EXPECT_EQ(credentials.get()->authority, "ca");
  file("token", "t1\n");
  EXPECT_EQ(credentials.get()->authorization, "Bearer t0");  // young enough
  credentials.drop();                                        // after a 401
  EXPECT_EQ(credentials.get()->authorization, "Bearer t1");
}

TEST_F(Kubeconfig, ExecPlugin) {
  const std::string script = file("plugin.sh", R"(#!/bin/sh
echo "run" >> "$LOG"
case "$KUBERNETES_EXEC_INFO" in *'"interactive":false'*) ;; *) exit 3;; esac
printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s","expirationTimestamp":"2999-01-01T00:00:00Z"}}' "$1"
)");
  fs::permissions(script, fs::perms::owner_all);
  const std::string path = file("config", R"(
current-context: x
clusters: [{name: c, cluster: {server: "https://a"}}]
users:
- name: u
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: ./plugin.sh
      args: [secret-1]
      env: [{name: LOG, value: ")" + (folder / "log").string() +
                                              R"("}]
      interactiveMode: Never
contexts: [{name: x, context: {cluster: c, user: u}}]
)");
  const auto config = load_kubeconfig(from(path));
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  SystemClock clock;
  Credentials credentials(clock, config->credentials);
  for (int i = 0; i < 3; ++i) {
    const auto credential = credentials.get();
    ASSERT_TRUE(credential.ok()) << credential.error().to_string();
    EXPECT_EQ(credential->authorization, "Bearer secret-1");
  }
  EXPECT_EQ(fs::file_size(folder / "log"), 4u);  // ran once
  credentials.drop();
  ASSERT_TRUE(credentials.get().ok());
  EXPECT_EQ(fs::file_size(folder / "log"), 8u);

  ExecPlugin failing = *config->credentials.exec;
  failing.command = "/bin/false";
  EXPECT_EQ(run_exec_plugin(failing).error().code(), Code::kDenied);
  failing.command = "/nowhere/plugin";
  EXPECT_EQ(run_exec_plugin(failing).error().code(), Code::kDenied);
  failing.command = "/bin/echo";
  EXPECT_FALSE(run_exec_plugin(failing).ok());
}

}  // namespace
}  // namespace rubato::kube
