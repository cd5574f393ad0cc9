// FreeWith: a deleter for unique_ptr from a C library's free function.
//
//   using Key = std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>>;
#pragma once

namespace rubato {

template <auto Free>
struct FreeWith {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};

}  // namespace rubato
