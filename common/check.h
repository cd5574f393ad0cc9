// CHECK states what must hold for our own code to be right. It stays on in production: a broken
// invariant stops this process and the standby (or the surviving workers) go on. Never use it for
// input, for an answer of a server, or for anything a user can cause.
#pragma once

#include <sstream>
#include <string>

namespace rubato {

// Prints file, line, condition and message to stderr, then aborts.
[[noreturn]] void check_failed(const char* file, int line, const std::string& what);

}  // namespace rubato

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) ::rubato::check_failed(__FILE__, __LINE__, #condition); \
  } while (false)

#define CHECK_OP_(a, op, b)                                                          \
  do {                                                                               \
    const auto& check_a_ = (a);                                                      \
    const auto& check_b_ = (b);                                                      \
    if (!(check_a_ op check_b_)) {                                                   \
      std::ostringstream check_out_;                                                 \
      check_out_ << #a " " #op " " #b " (" << check_a_ << " vs " << check_b_ << ")"; \
      ::rubato::check_failed(__FILE__, __LINE__, check_out_.str());                  \
    }                                                                                \
  } while (false)
#define CHECK_EQ(a, b) CHECK_OP_(a, ==, b)
#define CHECK_NE(a, b) CHECK_OP_(a, !=, b)
#define CHECK_LE(a, b) CHECK_OP_(a, <=, b)
#define CHECK_LT(a, b) CHECK_OP_(a, <, b)
#define CHECK_GE(a, b) CHECK_OP_(a, >=, b)
#define CHECK_GT(a, b) CHECK_OP_(a, >, b)
