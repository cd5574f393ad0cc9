#include "tools/rubatoctl/manifests.h"

#include "common/yaml.h"
#include "operator/api/worker_container.h"

#include <algorithm>

#include <fmt/core.h>

namespace rubato::ctl {

using json::Value;

namespace {

Value changes(const Value& last, const Value& wanted, const Value& live) {
  Value patch = Value::object();
  for (const auto& [key, value] : wanted.members()) {
    const Value* present = live.find(key);
    if (value.is_object() && present != nullptr && present->is_object()) {
      Value inner = changes(last[key], value, *present);
      if (inner.size() > 0) patch.set(key, std::move(inner));
    } else if (present == nullptr ? !value.is_null() : !(*present == value)) {
      patch.set(key, value);
    }
  }
  for (const auto& [key, value] : last.members())
    if (!wanted.has(key) && live.has(key)) patch.set(key, nullptr);
  return patch;
}

// What every object has to have, and what of it is read here.
Status check_manifest(const Value& manifest, const std::string& document) {
  for (const char* field : {"apiVersion", "kind"})
    if (!manifest[field].is_string())
      return Error(Code::kInvalid, fmt::format("{} has no {}", document, field));
  const auto wrong = [&](const std::string& what) {
    return Error(Code::kInvalid,
                 fmt::format("{} ({}) {}", document, manifest["kind"].string_or(""), what));
  };
  const Value& metadata = manifest["metadata"];
  if (!metadata["name"].is_null() && !metadata["name"].is_string())
    return wrong("has a metadata.name that is no text: put it in quotes");
  if (!metadata["name"].is_string()) return wrong("has no metadata.name");
  if (metadata["name"].string_view_or("").empty()) return wrong("has an empty metadata.name");
  if (!metadata["namespace"].is_null() && !metadata["namespace"].is_string())
    return wrong("has a metadata.namespace that is no text: put it in quotes");
  for (const char* field : {"labels", "annotations"})
    if (!metadata[field].is_null() && !metadata[field].is_object())
      return wrong(fmt::format("has metadata.{} that are no map", field));
  return ok();
}

}  // namespace

Result<std::vector<Value>> read_manifests(const std::string& text) {
  TRY(const std::vector<Value> documents, yaml::parse_all(text));
  std::vector<Value> manifests;
  for (const Value& document : documents) {
    if (document["kind"].string_view_or("") == "List") {
      for (const Value& item : document["items"].items()) manifests.push_back(item);
    } else {
      manifests.push_back(document);
    }
  }
  for (std::size_t i = 0; i < manifests.size(); ++i)
    TRY_OK(check_manifest(manifests[i], fmt::format("document {}", i + 1)));
  if (manifests.empty()) return Error(Code::kInvalid, "no object in it");
  return manifests;
}

Value with_last_applied(const Value& manifest) {
  Value bare = manifest;
  Value& annotations = bare.at("metadata").at("annotations");
  if (annotations.is_null()) annotations = Value::object();
  annotations.erase(kLastApplied);
  Value marked = bare;
  marked.at("metadata").at("annotations").set(kLastApplied, json::dump(bare) + "\n");
  return marked;
}

Value three_way_patch(const Value& last, const Value& manifest, const Value& live) {
  Value patch = changes(last, manifest, live);
  for (const char* identity : {"apiVersion", "kind", "status"}) patch.erase(identity);
  return patch.size() == 0 ? Value() : patch;
}

Result<std::string> namespace_for(const Value& manifest, const std::string& asked,
                                  const std::string& usual) {
  const std::string ns = manifest["metadata"]["namespace"].string_or("");
  if (ns.empty()) return asked.empty() ? usual : asked;
  if (asked.empty() || asked == ns) return ns;
  return Error(Code::kInvalid,
               fmt::format("the namespace from the provided object \"{}\" does not match the "
                           "namespace \"{}\"\n  What to do: give `-n {}`, or change or remove "
                           "metadata.namespace",
                           ns, asked, ns));
}

const json::Value& worker_of(const json::Value& job) {
  const json::Value& pod = job["spec"]["template"]["spec"];
  return pod["containers"][api::worker_container(pod)];
}

namespace {

// What follows the object in `… patch: Invalid value: "{…}": what is wrong`; empty: it is not that.
std::string after_quoted_patch(const std::string& message) {
  constexpr std::string_view kQuote = "patch: Invalid value: \"";
  const auto begin = message.find(kQuote);
  if (begin == std::string::npos) return "";
  auto at = begin + kQuote.size();
  while (at < message.size() && message[at] != '"') at += message[at] == '\\' ? 2 : 1;
  constexpr std::string_view kEnd = "\": ";
  const std::string_view rest = std::string_view(message).substr(std::min(at, message.size()));
  return std::string(rest.starts_with(kEnd) ? rest.substr(kEnd.size()) : "");
}

}  // namespace

std::string readable_refusal(const std::string& message) {
  if (std::string wrong = after_quoted_patch(message); !wrong.empty()) return wrong;
  constexpr std::string_view kOpen = " is invalid: [";
  const auto open = message.find(kOpen);
  const auto close = message.rfind(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return message;
  std::string text = message.substr(0, open) + " is invalid:";
  std::string causes = message.substr(open + kOpen.size(), close - open - kOpen.size());
  // A cause begins with the path of its field; a comma within a cause is followed by other words.
  std::size_t begin = 0;
  while (begin < causes.size()) {
    std::size_t end = begin;
    do {
      end = causes.find(", ", end + 1);
    } while (end != std::string::npos && causes.compare(end + 2, 5, "spec.") != 0 &&
             causes.compare(end + 2, 9, "metadata.") != 0 &&
             causes.compare(end + 2, 6, "spec: ") != 0);
    text += "\n  * " + causes.substr(begin, end == std::string::npos ? end : end - begin);
    begin = end == std::string::npos ? causes.size() : end + 2;
  }
  return text;
}

}  // namespace rubato::ctl
