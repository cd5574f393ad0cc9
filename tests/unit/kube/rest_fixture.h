// Rest: a RestClient for a scripted server on loopback, and what such a server says.
#pragma once

#include "kube/rest_client.h"
#include "kube/rest_transport.h"
#include "scripted_server.h"

#include <functional>
#include <memory>
#include <string>

#include <gtest/gtest.h>

namespace rubato::kube {

struct Rest : ::testing::Test {
  std::unique_ptr<RestClient> connect(const std::string& server) {
    RestConfig config;
    config.server = server;
    config.credentials.token.text = "t";
    return connect(config);
  }
  std::unique_ptr<RestClient> connect(const RestConfig& config) {
    auto client = RestClient::make(config, executor, metrics, options);
    EXPECT_TRUE(client.ok());
    return std::move(client).value();
  }
  static std::string plain(const ScriptedServer& server) {
    return "http://127.0.0.1:" + std::to_string(server.port());
  }
  static std::string secure(const ScriptedServer& server) {
    return "https://127.0.0.1:" + std::to_string(server.port());
  }
  ThreadExecutor executor;
  Metrics metrics;
  RestOptions options;
};

inline std::string pod(const std::string& name, int version) {
  return R"({"kind":"Pod","apiVersion":"v1","metadata":{"name":")" + name +
         R"(","namespace":"a","resourceVersion":")" + std::to_string(version) + R"("}})";
}
inline std::string event(const char* type, const std::string& object) {
  return std::string(R"({"type":")") + type + R"(","object":)" + object + "}\n";
}

// Answers every request of every connection by `answer`.
inline ScriptedServer::Script answering(std::function<std::string(const std::string&)> answer) {
  return [answer](ScriptedServer::Connection& connection) {
    for (;;) {
      const std::string request = connection.read_request();
      if (request.empty() || !connection.write(answer(request))) return;
    }
  };
}

}  // namespace rubato::kube
