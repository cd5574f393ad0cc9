// MemoryClient: kube::Client over a MemoryServer in the same process. It waits only by a Condition
// of the given Executor, so it runs as fibers in simulation. Thread-safe.
//
// Faults (simulation): a FaultHook is asked before and after every operation. An error from
// before() stands in for a request that never arrived; one from after() for an answer that was lost
// although the effect happened. The hook may also wait (executor.sleep_for) to model latency: it is
// called with no lock held. And it may keep a patch for later: a server does what waited in its
// queue, whether or not somebody still waits for the answer.
#pragma once

#include "apiserver/memory/memory_server.h"
#include "common/executor.h"
#include "common/rng.h"
#include "kube/client.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace rubato::kube {

enum class Verb { kGet, kList, kWatch, kNext, kCreate, kUpdate, kPatch, kRemove };
const char* name_of(Verb verb);

struct Operation {
  Verb verb = Verb::kGet;
  ResourceType type;
  Key key;  // for lists and watches only the namespace
  std::string subresource;
  const json::Value* body = nullptr;  // of a patch, for the time of the call
};

class FaultHook {
 public:
  virtual ~FaultHook() = default;
  virtual std::optional<Error> before(const Operation& operation) = 0;
  // kNext: before an event is handed out; kUnavailable ends the watch, kExpired is a 410.
  virtual std::optional<Error> after(const Operation& operation) = 0;
  // True: the patch is the hook's now, and its client hears of a time-out. `act` does it; it may be
  // called once, at any time while the server lives.
  virtual bool keeps(const Operation& operation, const json::Value& body,
                     std::function<void()> act) {
    (void)operation, (void)body, (void)act;
    return false;
  }
};

class MemoryClient : public Client {
 public:
  // `faults` may be null. Server, executor and hook must outlive the client and its watches.
  MemoryClient(MemoryServer& server, Executor& executor, FaultHook* faults = nullptr,
               std::uint64_t seed = 1);
  ~MemoryClient() override;

  Result<json::Value> get(const ResourceType& type, const Key& key,
                          const std::string& subresource) override;
  Result<ObjectList> list(const ResourceType& type, const std::string& ns,
                          const ListOptions& options) override;
  Result<std::unique_ptr<Watch>> watch(const ResourceType& type, const std::string& ns,
                                       const WatchOptions& options) override;
  Result<json::Value> create(const ResourceType& type, const std::string& ns,
                             const json::Value& object, const WriteOptions& options) override;
  Result<json::Value> update(const ResourceType& type, const json::Value& object,
                             const WriteOptions& options) override;
  Result<json::Value> patch(const ResourceType& type, const Key& key, PatchType kind,
                            const json::Value& body, const WriteOptions& options) override;
  Status remove(const ResourceType& type, const Key& key, const DeleteOptions& options) override;

  // Cuts this client off: its watches end and every call fails with kUnavailable, until
  // reconnect(). For a simulated process that crashed: its watches leave the server's lists.
  void disconnect();
  void reconnect();

 private:
  class MemoryWatch;
  struct Link;
  template <class T, class Act>
  Result<T> run(const Operation& operation, Act act);

  MemoryServer& server_;
  Executor& executor_;
  FaultHook* faults_;
  std::shared_ptr<Link> link_;
};

}  // namespace rubato::kube
