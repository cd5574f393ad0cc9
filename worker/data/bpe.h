// Byte-pair encoding (arXiv 1508.07909), as the "BPE" model of a tokenizer.json defines it: the
// pair of neighbours with the lowest rank is joined first, the leftmost of equals, until no pair
// has a rank.
#pragma once

#include "common/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rubato::worker {

struct BpeOptions {
  bool is_of_bytes = false;        // pieces begin as bytes; else as code points
  bool has_byte_fallback = false;  // an unknown code point becomes the tokens <0x00> … of its bytes
  bool ignores_merges = false;     // a piece that is a token is taken whole
  bool fuses_unknown = false;      // neighbours without a token become one unknown token
  // Of what has no token; unset: it gives none.
  std::optional<std::int32_t> unknown;
};

class Bpe {
 public:
  using Vocabulary = std::unordered_map<std::string, std::int32_t>;
  using Merges = std::vector<std::pair<std::string, std::string>>;  // in the order of their ranks
  // kInvalid: a merge of, or into, what is no token; no token for a byte to fall back to.
  static Result<Bpe> create(Vocabulary vocabulary, const Merges& merges, const BpeOptions& options);

  // Appends the tokens of a piece (valid UTF-8, or any bytes where options.is_of_bytes). O(n log
  // n).
  void encode(std::string_view piece, std::vector<std::int32_t>& out) const;

 private:
  struct Join {
    std::int32_t rank, token;
  };
  struct Symbol {
    std::int32_t token;
    std::int32_t before, after;  // neighbours; -1: none
    bool is_gone = false;
  };
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::vector<std::int32_t> symbols_of(std::string_view piece) const;
  void join(std::vector<Symbol>& symbols) const;

  Vocabulary vocabulary_;
  std::unordered_map<std::uint64_t, Join> joins_;
  std::vector<std::int32_t> byte_tokens_;  // of byte fallback
  BpeOptions options_;
};

}  // namespace rubato::worker
