#include "tools/localnode/volumes.h"

#include "common/files.h"
#include "common/net/certificates.h"
#include "tools/localnode/downward_api.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rubato::localnode {

namespace fs = std::filesystem;

namespace {

bool holds(const std::string& path, const std::string& bytes) {
  PosixFileSystem files;
  const auto text = read_text(files, path, bytes.size());
  return text.ok() && *text == bytes;
}

// Who reads it sees all of the old file or all of the new one.
Status write_private(const std::string& path, const std::string& bytes, mode_t mode) {
  if (holds(path, bytes)) return ok();
  const std::string fresh = path + ".new";
  ::unlink(fresh.c_str());
  const int fd = ::open(fresh.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, mode);
  if (fd < 0) return Error(Code::kUnavailable, "writing " + fresh + ": " + std::strerror(errno));
  (void)::fchmod(fd, mode);  // whatever the umask is
  const ssize_t n = ::write(fd, bytes.data(), bytes.size());
  ::close(fd);
  if (n != static_cast<ssize_t>(bytes.size())) return Error(Code::kUnavailable, "writing " + fresh);
  if (::rename(fresh.c_str(), path.c_str()) != 0)
    return Error(Code::kUnavailable, "replacing " + path + ": " + std::strerror(errno));
  return ok();
}

Status make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return Error(Code::kUnavailable, "making " + path + ": " + error.message());
  return ok();
}

using Contents = std::map<std::string, std::string>;  // bytes by key

// What a Secret or ConfigMap holds.
Result<Contents> contents_of(const json::Value& object, bool secret) {
  Contents contents;
  for (const auto& [key, text] : object["data"].members()) {
    std::string& bytes = contents[key];
    bytes = text.string_or("");
    if (secret) {
      TRY(bytes, net::base64_decode(bytes));
    }
  }
  for (const auto& [key, text] : object["binaryData"].members()) {
    TRY(contents[key], net::base64_decode(text.string_or("")));
  }
  return contents;
}

bool is_safe_path(const std::string& path) {
  return !path.empty() && path[0] != '/' && path.find("..") == std::string::npos;
}

// A file of a volume.
Status write_volume_file(const std::string& folder, const std::string& path,
                         const std::string& bytes, mode_t mode) {
  if (!is_safe_path(path)) return Error(Code::kInvalid, "\"" + path + "\" is no file name");
  TRY_OK(make_folder(fs::path(folder + "/" + path).parent_path().string()));
  return write_private(folder + "/" + path, bytes, mode);
}

// Its owner may always read it: the node does.
mode_t mode_of(const json::Value& source, const json::Value& item, mode_t usual) {
  const std::int64_t common = source["defaultMode"].int_or(usual);
  return static_cast<mode_t>(item["mode"].int_or(common) & 0777) | 0400;
}

}  // namespace

Volumes::Volumes(kube::Client& client, std::string claims)
    : client_(client), claims_(std::move(claims)) {}

Result<std::map<std::string, std::string>> Volumes::prepare(const json::Value& pod,
                                                            const std::string& pod_folder) {
  std::map<std::string, std::string> folders;
  for (const auto& volume : pod["spec"]["volumes"].items()) {
    const std::string name = volume["name"].string_or("");
    if (!is_safe_path(name)) return Error(Code::kInvalid, "volume without a proper name");
    auto folder = make(pod, volume, pod_folder + "/volumes/" + name);
    if (!folder.ok()) return folder.error().in("volume \"" + name + "\"");
    folders[name] = *folder;
  }
  return folders;
}

Result<std::string> Volumes::make(const json::Value& pod, const json::Value& volume,
                                  const std::string& folder) {
  const auto& named = volume["persistentVolumeClaim"];
  if (named.is_object() || volume["ephemeral"].is_object()) {
    const std::string made = kube::name_of(pod) + "-" + volume["name"].string_or("");
    const kube::Key key{kube::namespace_of(pod),
                        named.is_object() ? named["claimName"].string_or("") : made};
    const auto found = client_.get(kube::types::kPersistentVolumeClaim, key);
    if (!found.ok()) return found.error();
    const std::string path = claims_ + "/" + key.ns + "/" + key.name;
    TRY_OK(make_folder(path));
    return path;
  }
  TRY_OK(make_folder(folder));
  if (volume["emptyDir"].is_object()) return folder;
  for (const char* kind : {"secret", "configMap", "downwardAPI"}) {
    if (!volume[kind].is_object()) continue;
    TRY_OK(add_source(pod, json::Value::object({{kind, volume[kind]}}), folder));
    return folder;
  }
  if (const auto& projected = volume["projected"]; projected.is_object()) {
    for (json::Value source : projected["sources"].items()) {
      // The modes of files are those of the volume, where an item names none.
      for (auto& [kind, content] : source.mutable_members())
        if (content.is_object()) content.set("defaultMode", projected["defaultMode"]);
      TRY_OK(add_source(pod, source, folder));
    }
    return folder;
  }
  return Error(Code::kInvalid,
               "its type is not supported here; use emptyDir, secret, configMap, downwardAPI, "
               "projected, persistentVolumeClaim or ephemeral");
}

Status Volumes::add_source(const json::Value& pod, const json::Value& source,
                           const std::string& folder) {
  const std::string ns = kube::namespace_of(pod);
  if (source["secret"].is_object()) return add_object(ns, source["secret"], true, folder);
  if (source["configMap"].is_object()) return add_object(ns, source["configMap"], false, folder);
  if (const auto& fields = source["downwardAPI"]; fields.is_object()) {
    for (const auto& item : fields["items"].items()) {
      const std::string path = item["path"].string_or("");
      if (!is_safe_path(path))
        return Error(Code::kInvalid, "downwardAPI item without a proper path");
      TRY(const std::string value, downward_file(pod, item));
      TRY_OK(write_volume_file(folder, path, value, mode_of(fields, item, 0444)));
    }
    return ok();
  }
  const auto& members = source.members();
  return Error(Code::kInvalid,
               "projected sources of type \"" + (members.empty() ? "" : members.front().first) +
                   "\" are not supported here; use secret, configMap or downwardAPI");
}

Status Volumes::add_object(const std::string& ns, const json::Value& source, bool secret,
                           const std::string& folder) {
  const std::string name =
      source[secret ? "secretName" : "name"].string_or(source["name"].string_or(""));
  const auto& type = secret ? kube::types::kSecret : kube::types::kConfigMap;
  const auto object = client_.get(type, {ns, name});
  if (!object.ok()) {
    if (source["optional"].bool_or(false) && object.error().code() == Code::kNotFound) return ok();
    return object.error();
  }
  TRY(const Contents contents, contents_of(*object, secret));
  const mode_t mode = secret ? 0400 : 0444;
  const auto& items = source["items"];
  if (items.size() == 0)
    for (const auto& [key, bytes] : contents)
      TRY_OK(write_volume_file(folder, key, bytes, mode_of(source, json::Value(), mode)));
  for (const auto& item : items.items()) {
    const std::string key = item["key"].string_or("");
    const auto found = contents.find(key);
    if (found != contents.end()) {
      TRY_OK(write_volume_file(folder, item["path"].string_or(key), found->second,
                               mode_of(source, item, mode)));
    } else if (!source["optional"].bool_or(false)) {
      return Error(Code::kNotFound,
                   type.kind + " " + name + " has no key \"" + key + "\", which items names");
    }
  }
  return ok();
}

namespace {

Result<std::string> referred(kube::Client& client, const json::Value& pod,
                             const json::Value& container, const json::Value& from) {
  if (from["fieldRef"].is_object())
    return field_of(pod, from["fieldRef"]["fieldPath"].string_or(""));
  if (from["resourceFieldRef"].is_object())
    return resource_of(pod, container["name"].string_or(""), from["resourceFieldRef"]);
  const bool secret = from["secretKeyRef"].is_object();
  const auto& ref = secret ? from["secretKeyRef"] : from["configMapKeyRef"];
  if (!ref.is_object())
    return Error(Code::kInvalid,
                 "valueFrom of this type is not supported here; use fieldRef, resourceFieldRef, "
                 "secretKeyRef or configMapKeyRef");
  TRY(const json::Value object, client.get(secret ? kube::types::kSecret : kube::types::kConfigMap,
                                           {kube::namespace_of(pod), ref["name"].string_or("")}));
  const auto& text = object["data"][ref["key"].string_or("")];
  if (text.is_null())
    return Error(Code::kNotFound, "key " + ref["key"].string_or("") + " is missing");
  return secret ? net::base64_decode(text.string_or("")) : Result<std::string>(text.string_or(""));
}

bool is_optional(const json::Value& variable) {
  const json::Value& from = variable["valueFrom"];
  return from["secretKeyRef"]["optional"].bool_or(false) ||
         from["configMapKeyRef"]["optional"].bool_or(false);
}

// All that a Secret or ConfigMap of envFrom holds.
Status add_all(kube::Client& client, const std::string& ns, const json::Value& source,
               std::map<std::string, std::string>& environment) {
  const bool secret = source["secretRef"].is_object();
  const auto& ref = secret ? source["secretRef"] : source["configMapRef"];
  if (!ref.is_object()) return Error(Code::kInvalid, "envFrom of this type is not supported here");
  const std::string name = ref["name"].string_or("");
  const auto object =
      client.get(secret ? kube::types::kSecret : kube::types::kConfigMap, {ns, name});
  if (!object.ok()) {
    if (ref["optional"].bool_or(false) && object.error().code() == Code::kNotFound) return ok();
    return object.error().in("envFrom " + name);
  }
  for (const auto& [key, text] : (*object)["data"].members()) {
    std::string& value = environment[source["prefix"].string_or("") + key];
    value = text.string_or("");
    if (secret) {
      TRY(value, net::base64_decode(value));
    }
  }
  return ok();
}

}  // namespace

bool is_written_here(const json::Value& pod, const std::string& volume) {
  for (const auto& item : pod["spec"]["volumes"].items())
    if (item["name"].string_view_or("") == volume)
      return item["secret"].is_object() || item["configMap"].is_object() ||
             item["downwardAPI"].is_object() || item["projected"].is_object();
  return false;
}

namespace {

// `unknown`: a name that has no value, when there is one.
std::string expand_noting(const std::string& text, const std::map<std::string, std::string>& known,
                          std::string& unknown) {
  std::string out;
  std::size_t at = 0;
  while (true) {
    const std::size_t sign = text.find('$', at);
    if (sign == std::string::npos || sign + 1 == text.size()) return out + text.substr(at);
    out += text.substr(at, sign - at);
    const char next = text[sign + 1];
    const std::size_t close = next == '(' ? text.find(')', sign) : std::string::npos;
    if (close == std::string::npos) {
      out += next == '$' ? "$" : text.substr(sign, 2);
      at = sign + 2;
      continue;
    }
    at = close + 1;
    const std::string name = text.substr(sign + 2, close - sign - 2);
    const auto found = known.find(name);
    if (found == known.end()) unknown = name;
    out += found == known.end() ? text.substr(sign, at - sign) : found->second;
  }
}

}  // namespace

std::string expand(const std::string& text, const std::map<std::string, std::string>& known) {
  std::string unknown;
  return expand_noting(text, known, unknown);
}

Result<std::string> sub_path_in(const json::Value& mount,
                                const std::map<std::string, std::string>& environment) {
  const std::string expression = mount["subPathExpr"].string_or("");
  if (expression.empty()) return mount["subPath"].string_or("");
  std::string unknown;
  std::string path = expand_noting(expression, environment, unknown);
  if (unknown.empty()) return path;
  return Error(Code::kInvalid, "subPathExpr \"" + expression + "\" names the variable " + unknown +
                                   ", which the container's env does not set");
}

Result<std::map<std::string, std::string>> environment_of(kube::Client& client,
                                                          const json::Value& pod,
                                                          const json::Value& container) {
  std::map<std::string, std::string> environment;
  for (const auto& source : container["envFrom"].items())
    TRY_OK(add_all(client, kube::namespace_of(pod), source, environment));
  for (const auto& item : container["env"].items()) {
    const std::string name = item["name"].string_or("");
    if (item["valueFrom"].is_object()) {
      auto value = referred(client, pod, container, item["valueFrom"]);
      if (!value.ok() && value.error().code() == Code::kNotFound && is_optional(item)) continue;
      if (!value.ok()) return value.error().in("environment variable " + name);
      environment[name] = *value;
    } else {
      environment[name] = expand(item["value"].string_or(""), environment);
    }
  }
  return environment;
}

}  // namespace rubato::localnode
