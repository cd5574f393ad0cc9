// FencedClient: a leader's client. Reads always; writes only while the Lease will be ours for as
// long as a write may take, so that none of ours is under way when another leads. An API server
// gives no fencing of its own; this is the half of it that a client can do, tests in the patches
// (epoch, membership.leader) are the other. Thread-safe; adds one clock reading to a write.
#pragma once

#include "common/executor.h"
#include "kube/client.h"
#include "kube/errors.h"

#include <functional>

namespace rubato::kube {

class FencedClient : public Client {
 public:
  // `valid_until`: LeaderElector's. `margin`: how long a write may take (RequestLimits).
  FencedClient(Client& client, Executor& executor, std::function<MonoTime()> valid_until,
               Duration margin)
      : client_(client),
        executor_(executor),
        valid_until_(std::move(valid_until)),
        margin_(margin) {}

  Result<json::Value> get(const ResourceType& type, const Key& key,
                          const std::string& subresource) override {
    return client_.get(type, key, subresource);
  }
  Result<ObjectList> list(const ResourceType& type, const std::string& ns,
                          const ListOptions& options) override {
    return client_.list(type, ns, options);
  }
  Result<std::unique_ptr<Watch>> watch(const ResourceType& type, const std::string& ns,
                                       const WatchOptions& options) override {
    return client_.watch(type, ns, options);
  }
  Result<json::Value> create(const ResourceType& type, const std::string& ns,
                             const json::Value& object, const WriteOptions& options) override;
  Result<json::Value> update(const ResourceType& type, const json::Value& object,
                             const WriteOptions& options) override;
  Result<json::Value> patch(const ResourceType& type, const Key& key, PatchType kind,
                            const json::Value& body, const WriteOptions& options) override;
  Status remove(const ResourceType& type, const Key& key, const DeleteOptions& options) override;

 private:
  Status check() const;

  Client& client_;
  Executor& executor_;
  std::function<MonoTime()> valid_until_;
  Duration margin_;
};

}  // namespace rubato::kube
