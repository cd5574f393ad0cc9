#include "worker/data/tokenizer.h"

namespace rubato::worker {

std::vector<std::int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string ByteTokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens)
    if (token >= 0 && token < 256) text.push_back(static_cast<char>(token));
  return text;
}

}  // namespace rubato::worker
