#include "kube/objects/object.h"

#include "kube/objects/decode.h"

namespace rubato::kube {

Result<Object> Object::decode(const json::Value& value) {
  Object object;
  TRY(object.meta, decode_meta(ValueView(value)));
  object.value = value;
  return object;
}

}  // namespace rubato::kube
