// Object: the whole JSON of any resource, for informers of types that have no projection. Which
// type it is stands in the informer's config.
#pragma once

#include "common/json.h"
#include "kube/objects/meta.h"

namespace rubato::kube {

struct Object {
  Meta meta;
  json::Value value;

  static Result<Object> decode(const json::Value& value);
};

}  // namespace rubato::kube
