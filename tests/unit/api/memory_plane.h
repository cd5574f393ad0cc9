// MemoryPlane: the in-memory API server with our CRDs and native rules, as the local mode has it.
#pragma once

#include "apiserver/memory/memory_server.h"
#include "operator/api/crd.h"
#include "operator/api/rules.h"

#include <string>
#include <vector>

namespace rubato::api {

class MemoryPlane {
 public:
  MemoryPlane() : server_(clock_) {
    for (const Kind& kind : kinds()) {
      const auto made = server_.create(kube::types::kCustomResourceDefinition, "", crd(kind));
      CHECK(made.ok());
      server_.set_validator(
          kind.type.plural + "." + kind.type.group,
          [name = kind.type.kind](const json::Value& old, const json::Value& now) {
            std::vector<kube::RuleFailure> out;
            for (const Violation& found : validate(name, old, now))
              out.push_back({found.field, found.message});
            return out;
          });
    }
  }

  kube::Answer<kube::Written> create(const json::Value& manifest, bool dry_run) {
    const Kind* kind = find_kind(manifest["kind"].string_view_or(""));
    CHECK(kind != nullptr);
    return server_.create(kind->type, kind->type.namespaced ? "default" : "", manifest,
                          strict(dry_run));
  }

  // A merge patch on the object that `manifest` created.
  kube::Answer<kube::Written> patch(const json::Value& manifest, const json::Value& body,
                                    const std::string& subresource, bool dry_run) {
    const Kind* kind = find_kind(manifest["kind"].string_view_or(""));
    CHECK(kind != nullptr);
    kube::WriteOptions options = strict(dry_run);
    options.subresource = subresource;
    return server_.patch(kind->type, kube::key_of(manifest), kube::PatchType::kMerge, body,
                         options);
  }

 private:
  static kube::WriteOptions strict(bool dry_run) {
    kube::WriteOptions options;
    options.dry_run = dry_run;
    options.field_validation = "Strict";
    return options;
  }

  SystemClock clock_;
  kube::MemoryServer server_;
};

// The causes of a refusal, "field: message" each, in order; the message alone where there are none.
inline std::vector<std::string> causes_of(const kube::Answer<kube::Written>& answer) {
  std::vector<std::string> out;
  if (answer.ok()) return out;
  for (const json::Value& cause : answer.error().details["causes"].items())
    out.push_back(cause["field"].string_or("") + ": " + cause["message"].string_or(""));
  if (out.empty()) out.push_back(answer.error().message);
  return out;
}

}  // namespace rubato::api
