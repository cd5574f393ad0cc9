#include "common/result.h"

#include <string_view>

namespace rubato {

const char* name_of(Code code) {
  switch (code) {
    case Code::kInvalid:
      return "invalid";
    case Code::kNotFound:
      return "not_found";
    case Code::kAlreadyExists:
      return "already_exists";
    case Code::kConflict:
      return "conflict";
    case Code::kExpired:
      return "expired";
    case Code::kDenied:
      return "denied";
    case Code::kExhausted:
      return "exhausted";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kTimeout:
      return "timeout";
    case Code::kCancelled:
      return "cancelled";
    case Code::kInternal:
      return "internal";
  }
  check_failed(__FILE__, __LINE__, "unknown Code");
}

Retry retry_class(Code code) {
  switch (code) {
    case Code::kInvalid:
    case Code::kNotFound:
    case Code::kAlreadyExists:
    case Code::kDenied:
    case Code::kCancelled:
      return Retry::kNever;
    case Code::kConflict:
    case Code::kExpired:
      return Retry::kNow;  // with fresh state: the old decision is void
    case Code::kUnavailable:
    case Code::kTimeout:
    case Code::kInternal:
      return Retry::kBackoff;
    case Code::kExhausted:
      return Retry::kAfter;
  }
  check_failed(__FILE__, __LINE__, "unknown Code");
}

Error Error::in(const std::string& context) const {
  Error outer = *this;
  outer.what_ = context + ": " + what_;
  return outer;
}

std::string Error::to_string() const {
  return std::string(name_of(code_)) + ": " + what_ + " (" + where_.file_name() + ":" +
         std::to_string(where_.line()) + ")";
}

}  // namespace rubato
