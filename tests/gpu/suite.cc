#include "tests/gpu/suite.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace rubato::worker::gpu {

std::uint64_t Draw::next() {
  state_ += 0x9e3779b97f4a7c15u;
  std::uint64_t x = state_;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

Floats noise(std::size_t count, std::uint64_t seed, double size) {
  Draw draw(seed);
  Floats out(count);
  for (float& x : out) x = static_cast<float>(size * (2 * draw.unit() - 1));
  return out;
}

Ints tokens(std::size_t count, std::uint64_t below, std::uint64_t seed) {
  Draw draw(seed);
  Ints out(count);
  // Common tokens are common: the square of a uniform number.
  for (auto& x : out) {
    const double u = draw.unit();
    x = static_cast<std::int32_t>(u * u * static_cast<double>(below));
  }
  return out;
}

void Report::begin(std::string what) { what_ = std::move(what); }

void Report::fail(const std::string& sentence) {
  constexpr int kShown = 40;
  if (++failures_ <= kShown) std::printf("  FAILED %s: %s\n", what_.c_str(), sentence.c_str());
}

void Report::expect(bool holds, const std::string& sentence) {
  ++looked_at_;
  if (!holds) fail(sentence);
}

void Report::same(const Floats& got, const Floats& want, const char* of) {
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const bool both_nan = std::isnan(got[i]) && std::isnan(want[i]);
    if (std::bit_cast<std::uint32_t>(got[i]) == std::bit_cast<std::uint32_t>(want[i]) || both_nan)
      continue;
    if (wrong++ == 0) first = i;
  }
  looked_at_ += static_cast<std::int64_t>(want.size());
  if (wrong == 0) return;
  char text[200];
  std::snprintf(text, sizeof text, "%zu of %zu elements of %s differ; [%zu] is %a, not %a", wrong,
                want.size(), of, first, static_cast<double>(got[first]),
                static_cast<double>(want[first]));
  fail(text);
}

void Report::same(const Ints& got, const Ints& want, const char* of) {
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = 0; i < want.size(); ++i)
    if (got[i] != want[i] && wrong++ == 0) first = i;
  looked_at_ += static_cast<std::int64_t>(want.size());
  if (wrong == 0) return;
  fail(std::to_string(wrong) + " of " + std::to_string(want.size()) + " elements of " + of +
       " differ; [" + std::to_string(first) + "] is " + std::to_string(got[first]) + ", not " +
       std::to_string(want[first]));
}

void Report::near(const Floats& got, const Wide& want, const Wide& bound, const char* of) {
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - want[i]);
    const double part = bound[i] > 0 ? error / bound[i] : (error > 0 ? INFINITY : 0);
    if (part <= worst) continue;  // a NaN is not
    worst = std::isnan(part) ? INFINITY : part;
    at = i;
  }
  looked_at_ += static_cast<std::int64_t>(want.size());
  worst_ = std::max(worst_, worst);
  if (worst <= 1) return;
  fail(std::string(of) + "[" + std::to_string(at) + "] is " + std::to_string(got[at]) + ", not " +
       std::to_string(want[at]) + " to within " + std::to_string(bound[at]));
}

void Report::close(const Floats& got, const Wide& want, double bound, const char* of) {
  double errors = 0, wants = 0, worst = 0, largest = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double error = static_cast<double>(got[i]) - want[i];
    errors += error * error;
    wants += want[i] * want[i];
    worst = std::max(worst, std::abs(error));
    largest = std::max(largest, std::abs(want[i]));
  }
  looked_at_ += static_cast<std::int64_t>(want.size());
  const double relative = wants > 0 ? std::sqrt(errors / wants) : std::sqrt(errors);
  worst_ = std::max(worst_, relative / bound);
  if (relative <= bound && worst <= 16 * bound * std::max(largest, 1e-30)) return;
  char text[200];
  std::snprintf(text, sizeof text, "%s is off by %.2e of its norm (bound %.2e), worst element %.2e",
                of, relative, bound, worst);
  fail(text);
}

void Report::line(const std::string& title) {
  const int failed = failures_ - failures_before_;
  std::printf("%-34s %12lld compared  %s", title.c_str(), static_cast<long long>(looked_at_),
              failed == 0 ? "ok" : "FAILED");
  if (worst_ > 0) std::printf("  (worst %.2f of its bound)", worst_);
  std::printf("\n");
  std::fflush(stdout);
  looked_at_ = 0;
  worst_ = 0;
  failures_before_ = failures_;
}

template <class T>
std::vector<T> Bench::read_as(ConstBuffer buffer) {
  std::vector<T> out(static_cast<std::size_t>(buffer.count()));
  device.copy_to_host(*stream, out.data(), buffer);
  if (const Status done = stream->synchronize(); !done.ok()) {
    std::printf("the device failed: %s\n", done.error().to_string().c_str());
    std::exit(1);
  }
  return out;
}

Buffer Bench::poisoned(DType type, std::int64_t count) {
  const std::size_t bytes = Arena::bytes_for(type, std::max<std::int64_t>(count, 1));
  auto arena = device.allocate(bytes);
  if (!arena.ok()) {
    std::printf("%s\n", arena.error().to_string().c_str());
    std::exit(1);
  }
  const Buffer all = arena->take(DType::kU8, static_cast<std::int64_t>(bytes));
  device.memset(*stream, all, 0xFF);
  const Buffer buffer(all.address(), count, type);
  const auto used = static_cast<std::int64_t>(buffer.bytes());
  lent_.push_back({std::move(arena).value(), all.slice(used, all.count() - used)});
  return buffer;
}

void Bench::clear() {
  for (const Lent& one : lent_)
    for (const std::uint8_t byte : read_as<std::uint8_t>(one.behind)) {
      if (byte == 0xFF) continue;
      std::printf("FAILED: something was written behind a buffer\n");
      std::exit(1);
    }
  lent_.clear();
}

Buffer Bench::upload(const Floats& values) {
  const Buffer buffer = floats(static_cast<std::int64_t>(values.size()));
  device.copy_to_device(*stream, buffer, values.data());
  CHECK(stream->synchronize().ok());
  return buffer;
}

Buffer Bench::upload(const Ints& values) {
  const Buffer buffer = poisoned(DType::kI32, static_cast<std::int64_t>(values.size()));
  device.copy_to_device(*stream, buffer, values.data());
  CHECK(stream->synchronize().ok());
  return buffer;
}

Floats Bench::read(ConstBuffer buffer) { return read_as<float>(buffer); }
Ints Bench::read_ints(ConstBuffer buffer) { return read_as<std::int32_t>(buffer); }
Wide Bench::read_wide(ConstBuffer buffer) { return read_as<double>(buffer); }

}  // namespace rubato::worker::gpu
