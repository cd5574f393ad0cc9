// Expected failures are values. `Result<T>` holds a T or an Error; an Error says what went wrong,
// where in the code, and, by its code, whether trying again can help.
//
//   Result<Pod> find(const Key& key);
//   TRY(const Pod pod, find(key));          // returns the error to the caller, or binds the value
//   TRY_OK(client.remove(kPods, ns, name)); // the same for Result<void>
//   return error.in("reading spec of job a/b");  // adds context on the way up
#pragma once

#include "common/check.h"

#include <chrono>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <variant>

namespace rubato {

enum class Code {
  kInvalid,  // the input is wrong and stays wrong
  kNotFound,
  kAlreadyExists,
  kConflict,  // somebody else wrote first: read again, decide again
  kExpired,   // a version or a lease is too old: start over from the present state
  kDenied,
  kExhausted,    // a bound was reached; retry after `retry_after`
  kUnavailable,  // the other side cannot be reached or is not ready
  kTimeout,      // a deadline passed; the effect may have happened
  kCancelled,    // we were told to stop
  kInternal,     // the other side is broken in a way we cannot name
};

enum class Retry { kNever, kNow, kBackoff, kAfter };

const char* name_of(Code code);
Retry retry_class(Code code);

class [[nodiscard]] Error {
 public:
  Error(Code code, std::string what, std::source_location where = std::source_location::current())
      : code_(code), what_(std::move(what)), where_(where) {}

  Code code() const { return code_; }
  const std::string& what() const { return what_; }
  const std::source_location& where() const { return where_; }
  // How long the other side asked us to wait (HTTP Retry-After); zero when it did not say.
  std::chrono::milliseconds retry_after() const { return retry_after_; }
  Error& set_retry_after(std::chrono::milliseconds wait) {
    retry_after_ = wait;
    return *this;
  }
  // A finer machine-readable reason than the code, e.g. the `reason` of a Kubernetes Status.
  const std::string& reason() const { return reason_; }
  Error& set_reason(std::string reason) {
    reason_ = std::move(reason);
    return *this;
  }

  // The same error with "context: " before its text.
  Error in(const std::string& context) const;
  // "not_found: pods "a" not found (kube/rest.cc:81)"
  std::string to_string() const;

 private:
  Code code_;
  std::string what_;
  std::string reason_;
  std::source_location where_;
  std::chrono::milliseconds retry_after_{0};
};

template <class T>
class [[nodiscard]] Result {
 public:
  using Value = T;
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit by design
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT
  template <class U>
    requires(std::is_convertible_v<U &&, T> && !std::is_same_v<std::decay_t<U>, Result> &&
             !std::is_same_v<std::decay_t<U>, T> && !std::is_same_v<std::decay_t<U>, Error>)
  Result(U&& value) : state_(std::in_place_index<0>, std::forward<U>(value)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & {
    check_ok();
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    check_ok();
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    check_ok();
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const {
    CHECK(!ok());
    return *std::get_if<1>(&state_);
  }
  T value_or(T other) const& {
    if (ok()) return value();
    return other;
  }

 private:
  void check_ok() const {
    if (!ok())
      check_failed(__FILE__, __LINE__, "value() of " + std::get_if<1>(&state_)->to_string());
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit by design
  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    CHECK(!ok());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};
using Status = Result<void>;
inline Status ok() { return {}; }

}  // namespace rubato

#define RUBATO_CONCAT2_(a, b) a##b
#define RUBATO_CONCAT_(a, b) RUBATO_CONCAT2_(a, b)
#define RUBATO_TRY_(name, declaration, ...) \
  auto name = (__VA_ARGS__);                \
  if (!name.ok()) return name.error();      \
  declaration = std::move(name).value()
#define TRY(declaration, ...) \
  RUBATO_TRY_(RUBATO_CONCAT_(try_result_, __LINE__), declaration, __VA_ARGS__)
#define TRY_OK(...)                                                                      \
  do {                                                                                   \
    if (auto try_status_ = (__VA_ARGS__); !try_status_.ok()) return try_status_.error(); \
  } while (false)
