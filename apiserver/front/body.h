// Bodies of requests: JSON, YAML, and the few protobuf messages that kubectl's generators send.
// Pure functions.
#pragma once

#include "apiserver/front/message.h"
#include "apiserver/memory/api_error.h"

#include <optional>
#include <string>

namespace rubato::apiserver {

// By Content-Type; no type is JSON. 400 for what cannot be read, 415 for other types.
kube::Answer<json::Value> read_body(const Request& request);

// What to say of a JSON body that has a field twice, where the request asks for strict validation.
// To be asked after read_body(), which takes the last of them.
std::optional<std::string> field_written_twice(const Request& request);

// The kind of patch that the Content-Type names; 415 with what `custom` types accept.
kube::Answer<kube::PatchType> patch_type(const Request& request, bool custom);

bool is_protobuf(const Request& request);

}  // namespace rubato::apiserver
