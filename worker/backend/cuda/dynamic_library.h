// A library of NVIDIA's that is looked up when it is first needed, so that programs start without
// it. Private to worker/backend/cuda.
#pragma once

#include "common/result.h"

#include <string>
#include <type_traits>
#include <utility>

#include <dlfcn.h>

namespace rubato::worker::cuda {

// Never closed: such libraries keep state and threads of the process.
class DynamicLibrary {
 public:
  // `file`: as the loader finds it; `name`: for people. kNotFound.
  static Result<DynamicLibrary> open(const char* file, const std::string& name) {
    void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return DynamicLibrary(file, handle);
    return Error(
        Code::kNotFound,
        name + " is not on this machine, or not where the loader looks (" + dlerror() + ")");
  }
  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(handle_, name));
    if (function == nullptr) missing_ = name;
  }
  // After all find(): kNotFound names one that is not there.
  Status has_all() const {
    if (missing_.empty()) return ok();
    return Error(Code::kNotFound, file_ + " has no " + missing_);
  }

 private:
  DynamicLibrary(std::string file, void* handle) : file_(std::move(file)), handle_(handle) {}

  std::string file_;
  void* handle_;
  std::string missing_;
};

}  // namespace rubato::worker::cuda
