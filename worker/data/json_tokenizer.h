// Tokenizers as Hugging Face keeps them: tokenizer.json with a BPE model, of bytes (GPT-2, Llama 3,
// SmolLM) or of code points with spaces as U+2581 and bytes to fall back to (Llama 2). Gives the
// tokens that the `tokenizers` package gives with add_special_tokens=False, and without truncation
// and padding; what stands in tokenizer.json and is not done here is refused by its name.
#pragma once

#include "common/files.h"
#include "common/result.h"
#include "worker/data/bpe.h"
#include "worker/data/pretokenize.h"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rubato::json {
class Value;
}

namespace rubato::worker {

// kInvalid: what programs say when --end is given without --tokenizer.
Error end_without_tokenizer();

// The reason() of a tokenizer.json that is well, but not one of those that this program has.
inline constexpr const char* kUnsupportedTokenizer = "UnsupportedTokenizer";

class JsonTokenizer {
 public:
  static constexpr std::size_t kBytesMax = 64u << 20;
  // kInvalid names the member.
  static Result<JsonTokenizer> parse(std::string_view json);

  // `path`: a tokenizer.json, or a folder that has one. Errors of parse() with its name, and
  // files'.
  static Result<JsonTokenizer> open(FileSystem& files, const std::string& path);

  // Broken UTF-8 is mended first (utf8.h). Added tokens are found in the text, as the package does.
  std::vector<std::int32_t> encode(std::string_view text) const;
  // The bytes that the tokens stand for; what is no token gives nothing.
  std::string decode(std::span<const std::int32_t> tokens) const;
  // The longest start of `text` that may be encoded alone: encode(text + more) is its tokens and
  // those of the rest. 0: none is known, the text must be encoded whole. `searched`: so many bytes
  // gave 0 before, so that a text that grows is searched once.
  std::size_t whole_part(std::string_view text, std::size_t searched = 0) const;

  std::int64_t vocabulary() const { return vocabulary_; }  // the largest token + 1
  std::optional<std::int32_t> find(std::string_view token) const;
  // The token that ends a text: the one that is called `name`, or, where that is empty, the first
  // there is of <|endoftext|>, <|end_of_text|> and </s>. kInvalid: there is none.
  Result<std::int32_t> end_of_text(const std::string& name) const;

 private:
  struct Added {
    std::string content;
    std::int32_t token;
    bool is_late;  // looked for in normalized text: only between those that are not
  };
  enum class Prefix { kNever, kFirst, kAlways };

  Status read_added(const json::Value& added);
  Status read_normalizer(const json::Value& normalizer);
  Status read_pre_tokenizer(const json::Value& pre_tokenizer);
  Status read_metaspace(const json::Value& metaspace);
  Status read_model(const json::Value& model);
  const Added* added_at(std::string_view text, std::size_t at, bool is_late) const;
  // Appends the added tokens of one of the two kinds, and hands what lies between them to `plain`.
  void split_at_added(std::string_view text, bool is_late, std::vector<std::int32_t>& out,
                      const std::function<void(std::string_view)>& plain) const;
  void encode_plain(std::string_view text, bool is_first, std::vector<std::int32_t>& out) const;

  std::vector<std::pair<std::string, std::string>> replacements_;  // {"", x}: x is put before
  SplitRule rule_ = SplitRule::kNone;
  bool isolates_digits_ = false;  // before the rule
  bool is_of_bytes_ = false;
  bool has_metaspace_ = false, splits_at_metaspace_ = false;
  Prefix metaspace_prefix_ = Prefix::kNever;
  std::string metaspace_;
  std::array<std::vector<Added>, 256> added_;  // by first byte, the longest first
  bool has_added_space_ = false;               // an added token has white space in it
  std::unordered_map<std::int32_t, std::string> texts_;
  std::unordered_map<std::string, std::int32_t> tokens_;
  std::int64_t vocabulary_ = 0;
  std::optional<Bpe> bpe_;
};

}  // namespace rubato::worker
