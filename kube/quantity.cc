#include "kube/quantity.h"

#include <charconv>
#include <limits>

namespace rubato::kube {
namespace {

__extension__ using Wide = __int128;

constexpr Wide kMax = std::numeric_limits<std::int64_t>::max();
constexpr Wide kHuge = Wide{1} << 100;  // beyond every suffix times int64: saturate here
constexpr std::size_t kQuantityBytesMax = 64;

Error bad(std::string_view text) {
  return Error(Code::kInvalid,
               "\"" + std::string(text.substr(0, kQuantityBytesMax)) + "\" is not a quantity");
}

struct Scale {
  int power_of_ten = 0;
  int power_of_two = 0;
};

Result<Scale> parse_suffix(std::string_view text, std::string_view suffix) {
  if (suffix.empty()) return Scale{};
  constexpr std::string_view kBinary = "KMGTPE";
  constexpr std::string_view kDecimal = "numkMGTPE";
  constexpr int kDecimalPower[] = {-9, -6, -3, 3, 6, 9, 12, 15, 18};
  if (suffix.size() == 2 && suffix[1] == 'i') {
    const auto at = kBinary.find(suffix[0]);
    if (at == std::string_view::npos) return bad(text);
    Scale scale{0, 10 * (static_cast<int>(at) + 1)};
    return scale;
  }
  if (suffix.size() == 1) {
    const auto at = kDecimal.find(suffix[0]);
    if (at == std::string_view::npos) return bad(text);
    Scale scale{kDecimalPower[at], 0};
    return scale;
  }
  if (suffix[0] != 'e' && suffix[0] != 'E') return bad(text);
  std::string_view digits = suffix.substr(1);
  if (digits.front() == '+') digits.remove_prefix(1);
  int power = 0;
  const auto end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, power);
  if (parsed.ec != std::errc{} || parsed.ptr != end || power > 60 || power < -60) return bad(text);
  Scale scale{power, 0};
  return scale;
}

// digits × 10^power_of_ten × 2^power_of_two, away from zero, saturated. `rest`: what was written
// after these digits, or is left out here, is more than nothing.
std::int64_t scaled(Wide digits, bool rest, int power_of_ten, int power_of_two, bool negative) {
  for (; power_of_ten > 0 && digits < kHuge; --power_of_ten) digits *= 10;
  Wide one = 1;  // digits / one, which has a part below the point
  for (; power_of_ten < 0 && one < kHuge; ++power_of_ten) one *= 10;
  for (; power_of_ten < 0 && digits != 0; ++power_of_ten) {
    rest = rest || digits % 10 != 0;
    digits /= 10;
  }
  Wide whole = digits / one;
  Wide part = digits % one;
  for (; power_of_two > 0 && whole < kHuge; --power_of_two) {
    part *= 2;
    whole = 2 * whole + part / one;
    part %= one;
  }
  if (rest || part != 0) whole += 1;
  if (whole > kMax) whole = kMax;
  return static_cast<std::int64_t>(negative ? -whole : whole);
}

Result<std::int64_t> parse(std::string_view text, int extra_power_of_ten) {
  std::string_view rest = text;
  if (rest.empty() || rest.size() > kQuantityBytesMax) return bad(text);
  const bool negative = rest.front() == '-';
  if (negative || rest.front() == '+') rest.remove_prefix(1);

  Wide digits = 0;
  int power = 0;
  bool seen = false;
  bool fraction = false;
  bool rest_counts = false;  // digits beyond those that are kept
  std::size_t i = 0;
  for (; i < rest.size(); ++i) {
    const char c = rest[i];
    if (c == '.' && !fraction) {
      fraction = true;
    } else if (c >= '0' && c <= '9') {
      seen = true;
      if (digits < kHuge / 1000) {
        digits = digits * 10 + (c - '0');
        if (fraction) --power;
      } else {
        rest_counts = rest_counts || c != '0';
        if (!fraction) ++power;  // keeps the magnitude
      }
    } else {
      break;
    }
  }
  if (!seen) return bad(text);
  TRY(const Scale scale, parse_suffix(text, rest.substr(i)));
  return scaled(digits, rest_counts, power + scale.power_of_ten + extra_power_of_ten,
                scale.power_of_two, negative);
}

}  // namespace

Result<std::int64_t> parse_quantity(std::string_view text) { return parse(text, 0); }
Result<std::int64_t> parse_quantity_milli(std::string_view text) { return parse(text, 3); }

}  // namespace rubato::kube
