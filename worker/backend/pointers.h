// From typed buffers to pointers, with the type checked.
#pragma once

#include "worker/backend/device.h"

namespace rubato::worker {

inline const float* f32(ConstBuffer buffer) {
  CHECK(buffer.type() == DType::kF32);
  return static_cast<const float*>(buffer.address());
}
inline float* f32(Buffer buffer) {
  CHECK(buffer.type() == DType::kF32);
  return static_cast<float*>(buffer.address());
}
inline const std::int32_t* i32(ConstBuffer buffer) {
  CHECK(buffer.type() == DType::kI32);
  return static_cast<const std::int32_t*>(buffer.address());
}
inline std::int32_t* i32(Buffer buffer) {
  CHECK(buffer.type() == DType::kI32);
  return static_cast<std::int32_t*>(buffer.address());
}
inline std::int64_t* i64(Buffer buffer) {
  CHECK(buffer.type() == DType::kI64);
  return static_cast<std::int64_t*>(buffer.address());
}
inline double* f64(Buffer buffer) {
  CHECK(buffer.type() == DType::kF64);
  return static_cast<double*>(buffer.address());
}

}  // namespace rubato::worker
