// kubectl's generators (`create namespace|configmap|secret|serviceaccount`) post protobuf whatever
// the server offers. This reads those four kinds; nothing else. Pure function.
#pragma once

#include "common/json.h"
#include "common/result.h"

#include <string_view>

namespace rubato::apiserver {

// The object as JSON; kInvalid for another kind or a broken message.
Result<json::Value> protobuf_to_json(std::string_view body);

}  // namespace rubato::apiserver
