// What the suite runs against: an in-memory server in this process, and, when
// RUBATO_CONFORMANCE_KUBECONFIG names a kubeconfig, the API server it points at. A case is written
// once, from what the real server does; a difference is a defect of the in-memory one.
//
// RUBATO_CONFORMANCE_COLLECTS=1 says that a garbage collector runs beside that server (cases that
// need one are skipped otherwise).
#pragma once

#include "common/executor.h"
#include "kube/client.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::kube::conformance {

class Target {
 public:
  virtual ~Target() = default;
  virtual Client& client() = 0;
  virtual Executor& executor() = 0;
  virtual bool collects() const = 0;
};

// "memory" and, perhaps, "server".
std::vector<std::string> target_names();
inline std::string name_of_target(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}
// Made at the first use, with the suite's custom type installed; lives to the end of the process.
Target& target(const std::string& name);

extern const ResourceType kWidget;

class Conformance : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;
  void TearDown() override;

  Client& client() { return target(GetParam()).client(); }
  Executor& executor() { return target(GetParam()).executor(); }
  bool collects() { return target(GetParam()).collects(); }
  const std::string& ns() const { return ns_; }
  Key key(const std::string& name) const { return {ns_, name}; }

  json::Value widget(const std::string& name) const;
  json::Value pod(const std::string& name) const;
  // Creates and returns it, or fails the test. A pod may have to wait for its service account.
  json::Value make(const ResourceType& type, const json::Value& object);
  // Binds a pod to a node (which need not exist).
  void bind(const std::string& pod_name, const std::string& node);
  bool exists(const ResourceType& type, const std::string& name);
  // Polls until it holds; false after half a minute.
  bool eventually(const std::function<bool()>& holds);
  MonoTime soon() { return executor().now() + 30s; }
  // The next event that is not a bookmark: "ADDED name".
  std::string next_event(Watch& watch);

 private:
  std::string ns_;
};

json::Value parsed(const char* text);
// "code reason: message" of an error, without the request that a REST client puts before it.
std::string said(const Error& error);

}  // namespace rubato::kube::conformance
