// A 64-bit digest of bytes, to compare weights, data and step records for equality. Fast (several
// bytes per cycle), equal on every machine, sensitive to order; not a defence against an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace rubato::worker {

class Digest {
 public:
  explicit Digest(std::uint64_t seed = 0);
  Digest& add(const void* bytes, std::size_t size);
  Digest& add(std::string_view text);
  Digest& add_u64(std::uint64_t value);
  // The digest of everything added so far. Feeding the same bytes in other pieces gives another
  // digest: add() is one piece.
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_;
};

std::uint64_t digest_of(const void* bytes, std::size_t size);
// 16 lower-case hexadecimal digits, and back (kInvalid would need a reason: 0 on bad text).
std::string to_hex(std::uint64_t value);
std::uint64_t from_hex(std::string_view text);

}  // namespace rubato::worker
