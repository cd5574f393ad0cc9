#include "apiserver/front/body.h"

#include "apiserver/front/protobuf_body.h"
#include "common/yaml.h"

namespace rubato::apiserver {
namespace {

std::string media_type(const std::string& content_type) {
  std::string type = content_type.substr(0, content_type.find(';'));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  return type;
}

bool is_json(const std::string& type) {
  return type.empty() || type == "application/json" || type.ends_with("+json");
}

}  // namespace

bool is_protobuf(const Request& request) {
  return media_type(request.content_type) == "application/vnd.kubernetes.protobuf";
}

std::optional<std::string> field_written_twice(const Request& request) {
  if (request.param("fieldValidation") != "Strict" || request.body.empty()) return std::nullopt;
  if (!is_json(media_type(request.content_type))) return std::nullopt;
  json::Limits limits;
  limits.refuses_duplicates = true;
  const auto parsed = json::parse(request.body, limits);
  if (parsed.ok()) return std::nullopt;
  return "strict decoding error: " + parsed.error().what();
}

kube::Answer<json::Value> read_body(const Request& request) {
  const std::string type = media_type(request.content_type);
  if (request.body.empty()) return json::Value();
  if (type == "application/yaml" || type == "application/apply-patch+yaml") {
    auto parsed = yaml::parse(request.body);
    if (!parsed.ok())
      return kube::api_error::bad_request("error decoding YAML: " + parsed.error().what());
    return std::move(parsed).value();
  }
  if (is_protobuf(request)) {
    auto decoded = protobuf_to_json(request.body);
    if (!decoded.ok()) return kube::api_error::unsupported_media_type({"application/json"});
    return std::move(decoded).value();
  }
  if (!is_json(type))
    return kube::api_error::unsupported_media_type({"application/json", "application/yaml"});
  auto parsed = json::parse(request.body);
  if (!parsed.ok())
    return kube::api_error::bad_request("error decoding the body: " + parsed.error().what());
  return std::move(parsed).value();
}

kube::Answer<kube::PatchType> patch_type(const Request& request, bool custom) {
  const std::string type = media_type(request.content_type);
  if (type == "application/json-patch+json") return kube::PatchType::kJson;
  if (type == "application/merge-patch+json") return kube::PatchType::kMerge;
  if (type == "application/apply-patch+yaml") return kube::PatchType::kApply;
  if (type == "application/strategic-merge-patch+json" && !custom)
    return kube::PatchType::kStrategicMerge;
  std::vector<std::string> accepted = {"application/json-patch+json",
                                       "application/merge-patch+json"};
  if (!custom) accepted.emplace_back("application/strategic-merge-patch+json");
  accepted.emplace_back("application/apply-patch+yaml");
  return kube::api_error::unsupported_media_type(accepted);
}

}  // namespace rubato::apiserver
