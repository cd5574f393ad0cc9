// Time is a parameter. Monotonic time measures and schedules; wall time is only for people and for
// API objects. In simulation both are virtual and are skewed separately.
#pragma once

#include "common/result.h"

#include <chrono>
#include <string>
#include <string_view>

namespace rubato {

using Duration = std::chrono::nanoseconds;
using MonoTime = std::chrono::time_point<std::chrono::steady_clock, Duration>;
using WallTime = std::chrono::time_point<std::chrono::system_clock, Duration>;

using namespace std::chrono_literals;  // NOLINT: units everywhere are written 5s, 100ms

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual MonoTime now() const = 0;
  virtual WallTime wall() const = 0;
};

class SystemClock : public Clock {
 public:
  MonoTime now() const override;
  WallTime wall() const override;
};

double seconds_since_epoch(WallTime time);

// RFC 3339 in UTC, as Kubernetes writes it: Time "2026-11-21T07:38:29Z" and MicroTime
// "2026-11-21T07:38:29.000000Z".
std::string to_rfc3339(WallTime time);
std::string to_rfc3339_micro(WallTime time);
// Nanoseconds in 64 bits reach from 1677 to 2262. A legal time outside of these, as a deadline in
// the year 9999, is read as the nearer of them, here and in certificates.
inline constexpr WallTime kFirstTime = std::chrono::sys_days(std::chrono::year(1678) / 1 / 1);
inline constexpr WallTime kLastTime = std::chrono::sys_days(std::chrono::year(2262) / 1 / 1);
WallTime nearest_wall_time(std::chrono::sys_seconds time);
// Years 0000 to 9999, "T" and "Z" in either case. kInvalid: it is no RFC 3339 time.
Result<WallTime> parse_rfc3339(std::string_view text);

// "32s", "6m5s", "4h", "3d": ages as kubectl prints them.
std::string human_duration(Duration duration);

}  // namespace rubato
