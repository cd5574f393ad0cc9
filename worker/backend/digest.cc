#include "worker/backend/digest.h"

#include "common/rng.h"

#include <cstring>

namespace rubato::worker {

namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B97F4A7C15;
constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;

std::uint64_t rotate(std::uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }

std::uint64_t mix_in(std::uint64_t lane, std::uint64_t word) {
  return rotate(lane + word * kPrime2, 31) * kPrime1;
}

}  // namespace

Digest::Digest(std::uint64_t seed) : state_(mix64(seed ^ kPrime1)) {}

Digest& Digest::add(const void* bytes, std::size_t size) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  // Four lanes of eight bytes keep the multiplier busy.
  std::uint64_t lanes[4] = {state_ + kPrime1, state_ + kPrime2, state_, state_ - kPrime1};
  std::size_t left = size;
  for (; left >= 32; left -= 32, at += 32) {
    std::uint64_t words[4];
    std::memcpy(words, at, sizeof words);
    for (int i = 0; i < 4; ++i) lanes[i] = mix_in(lanes[i], words[i]);
  }
  unsigned char tail[32] = {};
  if (left > 0) std::memcpy(tail, at, left);
  std::uint64_t words[4];
  std::memcpy(words, tail, sizeof words);
  std::uint64_t all = mix64(static_cast<std::uint64_t>(size));
  for (int i = 0; i < 4; ++i) all = mix64(all ^ mix_in(lanes[i], words[i]));
  state_ = all;
  return *this;
}

Digest& Digest::add(std::string_view text) { return add(text.data(), text.size()); }

Digest& Digest::add_u64(std::uint64_t value) {
  state_ = mix64(mix_in(state_, value));
  return *this;
}

std::uint64_t digest_of(const void* bytes, std::size_t size) {
  return Digest().add(bytes, size).value();
}

std::string to_hex(std::uint64_t value) {
  std::string out(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4)
    out[static_cast<std::size_t>(i)] = "0123456789abcdef"[value & 15];
  return out;
}

std::uint64_t from_hex(std::string_view text) {
  std::uint64_t value = 0;
  if (text.size() > 16) return 0;
  for (const char c : text) {
    int digit = 0;
    if (c >= '0' && c <= '9')
      digit = c - '0';
    else if (c >= 'a' && c <= 'f')
      digit = c - 'a' + 10;
    else
      return 0;
    value = (value << 4) | static_cast<std::uint64_t>(digit);
  }
  return value;
}

}  // namespace rubato::worker
