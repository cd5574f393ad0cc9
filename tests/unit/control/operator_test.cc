// A whole operator on threads, against an in-memory API server.
#include "operator/control/operator.h"

#include "apiserver/memory/memory_client.h"
#include "common/net/tls_network.h"
#include "operator/api/crd.h"
#include "operator/api/kinds.h"
#include "tests/unit/control/fixtures.h"

#include <functional>

namespace rubato::control {
namespace {

class OperatorTest : public ::testing::Test {
 protected:
  OperatorTest() {
    for (const api::Kind& kind : api::kinds())
      make(kube::types::kCustomResourceDefinition, api::crd(kind));
    make(kube::types::kNamespace, parse(R"({"metadata":{"name":"rubato-system"}})"));
    make(kube::types::kNode, parse(R"({"metadata":{"name":"n1"},"spec":{}})"));
  }
  void make(const kube::ResourceType& type, const json::Value& object) {
    const auto made = server_.create(type, "", object);
    if (!made.ok()) ADD_FAILURE() << made.error().message << " in " << json::dump(object);
  }
  bool wait_for(const std::function<bool()>& holds) {
    const MonoTime limit = executor_.now() + 30s;
    while (!holds() && executor_.now() < limit) executor_.sleep_for(1ms);
    return holds();
  }

  ThreadExecutor executor_;
  kube::MemoryServer server_{executor_.clock()};
  kube::MemoryClient client_{server_, executor_};
  kube::MemoryClient lease_client_{server_, executor_};
  net::TlsNetwork network_{executor_};
};

TEST_F(OperatorTest, StopsWhileTheClusterChanges) {
  const Task changes = executor_.spawn("changes", [&](const std::stop_token& stop) {
    for (int i = 0; !stop.stop_requested(); ++i) {
      const json::Value note =
          parse(R"({"metadata":{"annotations":{"i":")" + std::to_string(i) + R"("}}})");
      EXPECT_TRUE(
          server_.patch(kube::types::kNode, {"", "n1"}, kube::PatchType::kMerge, note).ok());
      executor_.sleep_for(Duration(50us));
    }
  });
  for (int i = 0; i < 20; ++i) {
    Metrics metrics;
    OperatorSettings settings;
    settings.identity = "replica-" + std::to_string(i);
    settings.coordinator_listen = {"127.0.0.1", 0};
    settings.coordinator_advertised = "127.0.0.1:1";
    Operator replica(client_, lease_client_, executor_, network_, metrics, settings);
    Status ended = Error(Code::kTimeout, "it runs");
    Task task = executor_.spawn("operator",
                                [&](const std::stop_token& stop) { ended = replica.run(stop); });
    const bool is_to_lead = i % 2 == 0;
    ASSERT_TRUE(wait_for([&] { return is_to_lead ? replica.is_leader() : replica.is_ready(); }));
    task.request_stop();
    task.join();
    EXPECT_TRUE(ended.ok()) << ended.error().to_string();
  }
}

}  // namespace
}  // namespace rubato::control
