// The byte-level tokenizer: token = byte, then special tokens. It needs no files and can encode
// anything.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::worker {

class ByteTokenizer {
 public:
  static constexpr std::int32_t kEndOfText = 256;
  static constexpr std::int64_t kVocabulary = 257;

  std::vector<std::int32_t> encode(std::string_view text) const;
  // Special tokens and tokens outside the vocabulary give nothing.
  std::string decode(std::span<const std::int32_t> tokens) const;
};

}  // namespace rubato::worker
