#include "kube/fenced_client.h"

namespace rubato::kube {

Status FencedClient::check() const {
  if (executor_.now() + margin_ < valid_until_()) return ok();
  return Error(Code::kUnavailable, "not written: the Lease may end before the write does")
      .set_reason(std::string(kNotLeading));
}

Result<json::Value> FencedClient::create(const ResourceType& type, const std::string& ns,
                                         const json::Value& object, const WriteOptions& options) {
  TRY_OK(check());
  return client_.create(type, ns, object, options);
}

Result<json::Value> FencedClient::update(const ResourceType& type, const json::Value& object,
                                         const WriteOptions& options) {
  TRY_OK(check());
  return client_.update(type, object, options);
}

Result<json::Value> FencedClient::patch(const ResourceType& type, const Key& key, PatchType kind,
                                        const json::Value& body, const WriteOptions& options) {
  TRY_OK(check());
  return client_.patch(type, key, kind, body, options);
}

Status FencedClient::remove(const ResourceType& type, const Key& key,
                            const DeleteOptions& options) {
  TRY_OK(check());
  return client_.remove(type, key, options);
}

}  // namespace rubato::kube
