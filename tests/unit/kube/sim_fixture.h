// A simulated process beside an in-memory API server, for tests of what uses a kube::Client.
#pragma once

#include "apiserver/memory/memory_client.h"
#include "apiserver/memory/memory_server.h"
#include "common/metrics.h"
#include "common/testing/sim_executor.h"

#include <functional>
#include <memory>
#include <string>

namespace rubato::kube {

// Fails operations at random, before or after their effect.
class RandomFaults : public FaultHook {
 public:
  explicit RandomFaults(std::uint64_t seed) : rng_(seed) {}
  double rate = 0;
  std::optional<Error> before(const Operation&) override { return draw(); }
  std::optional<Error> after(const Operation&) override { return draw(); }

 private:
  std::optional<Error> draw() {
    if (!rng_.chance(rate)) return std::nullopt;
    constexpr Code kCodes[] = {Code::kUnavailable, Code::kTimeout, Code::kInternal, Code::kExpired};
    return Error(kCodes[rng_.below(4)], "a fault of the test");
  }
  Rng rng_;
};

struct SimWorld {
  explicit SimWorld(std::uint64_t seed, ServerOptions options = {})
      : sim(seed),
        home(sim.process("server")),
        server(home.clock(), options),
        faults(seed),
        client(server, home, &faults, seed) {}

  testing::SimExecutor sim;
  testing::SimProcess& home;
  MemoryServer server;
  RandomFaults faults;
  MemoryClient client;
  Metrics metrics;

  // Writes past the fault hook.
  json::Value make_config_map(const std::string& name, int value) {
    const json::Value object = json::Value::object(
        {{"apiVersion", "v1"},
         {"kind", "ConfigMap"},
         {"metadata", json::Value::object({{"name", name}, {"namespace", "default"}})},
         {"data", json::Value::object({{"value", std::to_string(value)}})}});
    auto created = server.create(types::kConfigMap, "default", object);
    CHECK(created.ok());
    return created.value().object;
  }
  json::Value set_config_map(const std::string& name, int value) {
    const json::Value patch =
        json::Value::object({{"data", json::Value::object({{"value", std::to_string(value)}})}});
    auto set = server.patch(types::kConfigMap, Key{"default", name}, PatchType::kMerge, patch);
    CHECK(set.ok());
    return set.value().object;
  }
  void remove_config_map(const std::string& name) {
    CHECK(server.remove(types::kConfigMap, Key{"default", name}).ok());
  }
};

}  // namespace rubato::kube
