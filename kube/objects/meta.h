// Meta: what every cached object keeps of its metadata. Projections (Pod, Node …) are for reading:
// they are never written back, writes are patches.
#pragma once

#include "common/clock.h"
#include "kube/client.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rubato::kube {

// Annotations with other prefixes are dropped when an object is decoded: they may be large.
constexpr std::string_view kKeptAnnotationPrefix = "rubato.dev/";

// Sorted by key.
using StringMap = std::vector<std::pair<std::string, std::string>>;
// The value of a key, or nothing.
std::optional<std::string_view> find(const StringMap& map, std::string_view key);

struct Owner {
  std::string kind;
  std::string name;
  std::string uid;
  bool operator==(const Owner&) const = default;
};

struct Meta {
  std::string ns;
  std::string name;
  std::string uid;
  std::string resource_version;
  std::int64_t generation = 0;
  WallTime created{};
  std::optional<WallTime> deleting;  // deletionTimestamp
  StringMap labels;
  StringMap annotations;       // only those with kKeptAnnotationPrefix
  std::optional<Owner> owner;  // the controller among ownerReferences
  std::vector<std::string> finalizers;

  Key key() const { return Key{ns, name}; }
  bool operator==(const Meta&) const = default;
};

// An amount of a resource: "cpu" in milli-cores, everything else in units (bytes, devices).
struct Amount {
  std::string resource;
  std::int64_t value = 0;
  bool operator==(const Amount&) const = default;
};
using Amounts = std::vector<Amount>;  // sorted by resource, each once
std::int64_t amount_of(const Amounts& amounts, std::string_view resource);  // 0 when absent

struct ObjectCondition {
  std::string type;
  std::string status;  // "True" | "False" | "Unknown"
  std::string reason;
  WallTime last_transition{};
  bool operator==(const ObjectCondition&) const = default;
};

// Compares two resourceVersions of one resource type: comparable as integers since Kubernetes 1.35
// (KEP-5504), and in practice long before. "" is older than everything.
bool is_older_version(std::string_view a, std::string_view b);

}  // namespace rubato::kube
