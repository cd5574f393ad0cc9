#include "common/clock.h"

#include <algorithm>

#include <fmt/format.h>

namespace rubato {
namespace {

using std::chrono::days;
using std::chrono::floor;
using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::minutes;
using std::chrono::seconds;

std::string format_time(WallTime time, bool micro) {
  const auto day = floor<days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss<Duration> clock(time - day);
  std::string text =
      fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}", static_cast<int>(date.year()),
                  static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                  clock.hours().count(), clock.minutes().count(), clock.seconds().count());
  if (micro) {
    text +=
        fmt::format(".{:06}", std::chrono::duration_cast<microseconds>(clock.subseconds()).count());
  }
  return text + "Z";
}

// Reads fixed-width numbers and marks from the left; any mismatch makes it fail for good.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}
  bool failed() const { return failed_; }
  bool at_end() const { return rest_.empty(); }
  char peek() const { return rest_.empty() ? '\0' : rest_.front(); }

  int digits(std::size_t count) {
    int value = 0;
    if (rest_.size() < count) return fail();
    for (const char c : rest_.substr(0, count)) {
      if (c < '0' || c > '9') return fail();
      value = value * 10 + (c - '0');
    }
    rest_.remove_prefix(count);
    return value;
  }
  void mark(char lower, char upper) {
    if (peek() != lower && peek() != upper) {
      fail();
      return;
    }
    rest_.remove_prefix(1);
  }
  void mark(char c) { mark(c, c); }
  // Digits after the point, as nanoseconds; digits beyond the ninth are dropped.
  Duration fraction() {
    std::int64_t value = 0;
    int count = 0;
    for (; peek() >= '0' && peek() <= '9'; rest_.remove_prefix(1), ++count) {
      if (count < 9) value = value * 10 + (peek() - '0');
    }
    if (count == 0) fail();
    for (; count < 9; ++count) value *= 10;
    return Duration(value);
  }

 private:
  int fail() {
    failed_ = true;
    rest_ = {};
    return 0;
  }
  std::string_view rest_;
  bool failed_ = false;
};

Duration read_offset(Reader& in) {
  if (in.peek() == 'Z' || in.peek() == 'z') {
    in.mark('Z', 'z');
    return Duration(0);
  }
  const int sign = in.peek() == '-' ? -1 : 1;
  in.mark('+', '-');
  const int hour = in.digits(2);
  in.mark(':');
  const int minute = in.digits(2);
  if (hour > 23 || minute > 59) return Duration::max();
  return sign * (hours(hour) + minutes(minute));
}

}  // namespace

MonoTime SystemClock::now() const { return std::chrono::steady_clock::now(); }
WallTime SystemClock::wall() const { return std::chrono::system_clock::now(); }

double seconds_since_epoch(WallTime time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

std::string to_rfc3339(WallTime time) { return format_time(time, false); }
std::string to_rfc3339_micro(WallTime time) { return format_time(time, true); }

WallTime nearest_wall_time(std::chrono::sys_seconds time) {
  if (time >= std::chrono::time_point_cast<seconds>(kLastTime)) return kLastTime;
  if (time < std::chrono::time_point_cast<seconds>(kFirstTime)) return kFirstTime;
  return time;
}

Result<WallTime> parse_rfc3339(std::string_view text) {
  const auto invalid = [&] {
    return Error(Code::kInvalid, fmt::format("not an RFC 3339 time: \"{}\"", text.substr(0, 64)));
  };
  Reader in(text);
  const int year = in.digits(4);
  in.mark('-');
  const int month = in.digits(2);
  in.mark('-');
  const int day = in.digits(2);
  in.mark('T', 't');
  const int hour = in.digits(2);
  in.mark(':');
  const int minute = in.digits(2);
  in.mark(':');
  const int second = in.digits(2);
  Duration fraction(0);
  if (in.peek() == '.') {
    in.mark('.');
    fraction = in.fraction();
  }
  const Duration offset = read_offset(in);
  if (in.failed() || !in.at_end() || offset == Duration::max()) return invalid();

  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  // A leap second (:60) is accepted and read as the next second, as Go and POSIX do.
  if (!date.ok() || hour > 23 || minute > 59 || second > 60) return invalid();
  const auto whole = std::chrono::sys_days(date) + hours(hour) + minutes(minute) + seconds(second) -
                     std::chrono::duration_cast<seconds>(offset);
  const WallTime held = nearest_wall_time(whole);
  return std::min(floor<seconds>(held) == whole ? held + fraction : held, kLastTime);
}

// The steps of kubectl: two units while the larger is small, one afterwards.
std::string human_duration(Duration duration) {
  const auto total = std::chrono::duration_cast<seconds>(duration).count();
  if (total < -1) return "<invalid>";
  if (total < 0) return "0s";
  const auto two = [](auto large, const char* unit, auto small, const char* small_unit) {
    return small == 0 ? fmt::format("{}{}", large, unit)
                      : fmt::format("{}{}{}{}", large, unit, small, small_unit);
  };
  if (total < 2 * 60) return fmt::format("{}s", total);
  const auto in_minutes = total / 60;
  if (in_minutes < 10) return two(in_minutes, "m", total % 60, "s");
  if (in_minutes < 3 * 60) return fmt::format("{}m", in_minutes);
  const auto in_hours = in_minutes / 60;
  if (in_hours < 8) return two(in_hours, "h", in_minutes % 60, "m");
  if (in_hours < 48) return fmt::format("{}h", in_hours);
  const auto in_days = in_hours / 24;
  if (in_days < 8) return two(in_days, "d", in_hours % 24, "h");
  if (in_days < 2 * 365) return fmt::format("{}d", in_days);
  const auto in_years = in_days / 365;
  if (in_years < 8) return two(in_years, "y", in_days % 365, "d");
  return fmt::format("{}y", in_years);
}

}  // namespace rubato
