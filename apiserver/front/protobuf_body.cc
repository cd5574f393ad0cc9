#include "apiserver/front/protobuf_body.h"

#include "common/net/certificates.h"

#include <optional>
#include <vector>

namespace rubato::apiserver {
namespace {

using json::Value;

constexpr std::string_view kMagic("k8s\0", 4);

struct Field {
  std::uint32_t number = 0;
  std::uint64_t integer = 0;  // wire type 0
  std::string_view bytes;     // wire type 2
};

std::optional<std::uint64_t> varint(std::string_view& in) {
  std::uint64_t out = 0;
  for (unsigned shift = 0; shift < 64 && !in.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(in.front());
    in.remove_prefix(1);
    out |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
    if ((byte & 0x80U) == 0) return out;
  }
  return std::nullopt;
}

Result<std::vector<Field>> fields(std::string_view in) {
  const Error broken(Code::kInvalid, "broken protobuf message");
  std::vector<Field> out;
  while (!in.empty()) {
    const auto tag = varint(in);
    if (!tag) return broken;
    Field field;
    field.number = static_cast<std::uint32_t>(*tag >> 3U);
    if ((*tag & 7U) == 0) {
      const auto value = varint(in);
      if (!value) return broken;
      field.integer = *value;
    } else if ((*tag & 7U) == 2) {
      const auto size = varint(in);
      if (!size || *size > in.size()) return broken;
      field.bytes = in.substr(0, *size);
      in.remove_prefix(*size);
    } else {
      return broken;
    }
    out.push_back(field);
  }
  return out;
}

Status add_entry(Value& map, std::string_view entry, bool base64) {
  TRY(const auto parts, fields(entry));
  std::string key;
  std::string value;
  for (const Field& f : parts) (f.number == 1 ? key : value) = std::string(f.bytes);
  map.set(key, base64 ? net::base64_encode(value) : value);
  return ok();
}

// ObjectMeta: 1 name, 2 generateName, 3 namespace, 11 labels, 12 annotations.
Result<Value> metadata(std::string_view bytes) {
  TRY(const auto parts, fields(bytes));
  Value out = Value::object();
  for (const Field& f : parts) {
    const std::string text(f.bytes);
    if (f.number == 1 && !text.empty()) out.set("name", text);
    if (f.number == 2 && !text.empty()) out.set("generateName", text);
    if (f.number == 3 && !text.empty()) out.set("namespace", text);
    if (f.number == 11) TRY_OK(add_entry(out.at("labels"), f.bytes, false));
    if (f.number == 12) TRY_OK(add_entry(out.at("annotations"), f.bytes, false));
  }
  return out;
}

// ConfigMap: 2 data, 3 binaryData. Secret: 2 data, 3 type, 4 stringData.
Status fill(Value& object, const std::string& kind, const std::vector<Field>& parts) {
  for (const Field& f : parts) {
    if (f.number == 1) {
      TRY(Value meta, metadata(f.bytes));
      object.set("metadata", std::move(meta));
    } else if (kind == "ConfigMap" && (f.number == 2 || f.number == 3)) {
      const bool binary = f.number == 3;
      TRY_OK(add_entry(object.at(binary ? "binaryData" : "data"), f.bytes, binary));
    } else if (kind == "Secret" && (f.number == 2 || f.number == 4)) {
      const bool plain = f.number == 4;
      TRY_OK(add_entry(object.at(plain ? "stringData" : "data"), f.bytes, !plain));
    } else if (kind == "Secret" && f.number == 3) {
      object.set("type", std::string(f.bytes));
    }
  }
  return ok();
}

}  // namespace

Result<Value> protobuf_to_json(std::string_view body) {
  if (!body.starts_with(kMagic)) return Error(Code::kInvalid, "not Kubernetes protobuf");
  TRY(const auto envelope, fields(body.substr(kMagic.size())));
  Value object = Value::object();
  std::string_view raw;
  for (const Field& f : envelope) {
    if (f.number == 2) raw = f.bytes;
    if (f.number != 1) continue;
    TRY(const auto type, fields(f.bytes));
    for (const Field& part : type)
      object.set(part.number == 1 ? "apiVersion" : "kind", std::string(part.bytes));
  }
  const std::string kind = object["kind"].string_or("");
  if (kind != "Namespace" && kind != "ConfigMap" && kind != "Secret" && kind != "ServiceAccount")
    return Error(Code::kInvalid, "protobuf of kind " + kind + " is not understood");
  TRY(const auto parts, fields(raw));
  TRY_OK(fill(object, kind, parts));
  return object;
}

}  // namespace rubato::apiserver
