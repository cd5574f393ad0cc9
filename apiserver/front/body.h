// Bodies of requests: JSON, YAML, and the few protobuf messages that kubectl's generators send.
// Pure functions.
#pragma once

#include "apiserver/front/message.h"
#include "apiserver/memory/api_error.h"

namespace rubato::apiserver {

// By Content-Type; no type is JSON. 400 for what cannot be read, 415 for other types.
kube::Answer<json::Value> read_body(const Request& request);

// The kind of patch that the Content-Type names; 415 with what `custom` types accept.
kube::Answer<kube::PatchType> patch_type(const Request& request, bool custom);

bool is_protobuf(const Request& request);

}  // namespace rubato::apiserver
