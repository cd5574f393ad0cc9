#include "worker/data/json_tokenizer.h"

#include "common/json.h"
#include "common/words.h"
#include "worker/data/unicode_classes.h"
#include "worker/data/utf8.h"

#include <algorithm>

#include <fmt/format.h>

namespace rubato::worker {

namespace {

Error refused(const std::string& member, const json::Value& found) {
  if (found.is_null()) return Error(Code::kInvalid, "tokenizer.json: " + member + " is missing");
  return Error(Code::kInvalid,
               "tokenizer.json: " + member + " " + excerpt(json::dump(found)) + " is not supported")
      .set_reason(kUnsupportedTokenizer);
}

// The member is absent, null, or this value.
template <class T>
Status only(const json::Value& object, const std::string& of, const char* member, const T& wanted) {
  const json::Value& found = object[member];
  if (found.is_null() || found == json::Value(wanted)) return ok();
  return refused(of + "." + member, found);
}

// The member, or `fallback` where it is absent or null. Nothing else is true or false.
Result<bool> flag_of(const json::Value& object, const std::string& of, const char* member,
                     bool fallback) {
  const json::Value& found = object[member];
  if (!found.is_null() && !found.is_bool()) return refused(of + "." + member, found);
  return found.bool_or(fallback);
}

// Calls `one` with each step of a normalizer or pre-tokenizer, which may be a sequence of them.
template <class F>
Status each_step(const json::Value& value, const char* list, F one) {
  if (value.is_null()) return ok();
  if (value["type"].string_view_or("") != "Sequence") return one(value);
  if (!value[list].is_array()) return refused(list, value[list]);
  for (const json::Value& step : value[list].items()) TRY_OK(each_step(step, list, one));
  return ok();
}

// GPT-2 writes each byte as a printable code point: itself, or one from U+0100 on.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool is_itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
      bytes_[is_itself ? static_cast<char32_t>(byte) : next++] = static_cast<char>(byte);
    }
  }
  std::optional<std::string> bytes_of(std::string_view text) const {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint point = code_point_at(text, at);
      const auto found = bytes_.find(point.value);
      if (found == bytes_.end()) return std::nullopt;
      out.push_back(found->second);
      at += point.bytes;
    }
    return out;
  }

 private:
  std::unordered_map<char32_t, char> bytes_;
};

std::string replaced(std::string_view text, std::string_view what, std::string_view by) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t found = std::min(text.find(what, at), text.size());
    out.append(text, at, found - at);
    if (found < text.size()) out += by;
    at = found + (found < text.size() ? what.size() : 0);
  }
  return out;
}

// "<0x0A>"; nothing for any other text.
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const std::size_t digit = std::string_view("0123456789ABCDEF").find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    value = 16 * value + static_cast<int>(digit);
  }
  return static_cast<char>(value);
}

Result<std::pair<std::string, std::string>> merge_of(const json::Value& merge, std::size_t index) {
  if (merge.is_array() && merge.size() == 2)
    return std::pair(merge[std::size_t{0}].string_or(""), merge[std::size_t{1}].string_or(""));
  const std::string text = merge.string_or("");
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
    return refused(fmt::format("model.merges[{}]", index), merge);
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

}  // namespace

Error end_without_tokenizer() {
  return Error(Code::kInvalid,
               "--end names a token of a tokenizer: give --tokenizer, too, or leave it out");
}

Result<JsonTokenizer> JsonTokenizer::parse(std::string_view text) {
  TRY(const json::Value file,
      json::parse(text, {.depth = 16, .bytes = kBytesMax, .refuses_duplicates = true}));
  JsonTokenizer out;
  TRY_OK(out.read_normalizer(file["normalizer"]));
  TRY_OK(out.read_pre_tokenizer(file["pre_tokenizer"]));
  TRY_OK(out.read_model(file["model"]));
  const json::Value& added_tokens = file["added_tokens"];
  if (!added_tokens.is_null() && !added_tokens.is_array())
    return refused("added_tokens", added_tokens);
  for (const json::Value& added : added_tokens.items()) TRY_OK(out.read_added(added));
  for (auto& tokens : out.added_)
    std::ranges::stable_sort(tokens, std::greater<>{},
                             [](const Added& added) { return added.content.size(); });
  if (out.vocabulary_ == 0) return Error(Code::kInvalid, "tokenizer.json: model.vocab is empty");
  return out;
}

Result<JsonTokenizer> JsonTokenizer::open(FileSystem& files, const std::string& path) {
  const auto about = files.stat(path);
  const std::string file = about.ok() && about->is_directory ? path + "/tokenizer.json" : path;
  TRY(const std::string text, read_text(files, file, kBytesMax));
  auto tokenizer = parse(text);
  return tokenizer.ok() ? std::move(tokenizer) : tokenizer.error().in(file);
}

Status JsonTokenizer::read_added(const json::Value& added) {
  const std::string of = "added_tokens '" + excerpt(added["content"].string_view_or("")) + "'";
  for (const char* member : {"single_word", "lstrip", "rstrip"})
    TRY_OK(only(added, of, member, false));
  // What is looked for in normalized text is the same only where nothing is normalized.
  if (!replacements_.empty()) TRY_OK(only(added, of, "normalized", false));
  const std::string content = added["content"].string_or("");
  const std::int64_t id = added["id"].int_or(-1);
  if (content.empty() || id < 0 || id > INT32_MAX - 1) return refused("added_tokens", added);
  const auto token = static_cast<std::int32_t>(id);
  const auto known = tokens_.find(content);
  if (known != tokens_.end() ? known->second != token : texts_.contains(token))
    return Error(Code::kInvalid,
                 "tokenizer.json: " + of + " has the id " + std::to_string(token) +
                     (known != tokens_.end() ? ", before it had " + std::to_string(known->second)
                                             : ", which is another token's"));
  TRY(const bool is_late, flag_of(added, of, "normalized", false));
  added_[static_cast<unsigned char>(content[0])].push_back({content, token, is_late});
  for (std::size_t at = 0; at < content.size();) {
    const CodePoint point = code_point_at(content, at);
    has_added_space_ = has_added_space_ || is_space(point.value);
    at += point.bytes;
  }
  texts_[token] = content;
  tokens_[content] = token;
  vocabulary_ = std::max(vocabulary_, id + 1);
  return ok();
}

Status JsonTokenizer::read_normalizer(const json::Value& normalizer) {
  return each_step(normalizer, "normalizers", [&](const json::Value& step) -> Status {
    const auto type = step["type"].string_view_or("");
    if (type == "Prepend" && step["prepend"].is_string()) {
      replacements_.emplace_back("", step["prepend"].string_or(""));
      return ok();
    }
    const std::string pattern = step["pattern"]["String"].string_or("");
    if (type != "Replace" || pattern.empty() || !step["content"].is_string())
      return refused("normalizer", step);
    replacements_.emplace_back(pattern, step["content"].string_or(""));
    return ok();
  });
}

Status JsonTokenizer::read_pre_tokenizer(const json::Value& pre_tokenizer) {
  return each_step(pre_tokenizer, "pretokenizers", [&](const json::Value& step) -> Status {
    const auto type = step["type"].string_view_or("");
    if (is_of_bytes_ || has_metaspace_) return refused("pre_tokenizer", step);
    const bool is_first = rule_ == SplitRule::kNone && !isolates_digits_;
    if (type == "Metaspace" && is_first) return read_metaspace(step);
    if (type == "Digits" && is_first) {
      TRY(isolates_digits_, flag_of(step, "pre_tokenizer", "individual_digits", false));
      return isolates_digits_ ? ok() : Status(refused("pre_tokenizer", step));
    }
    if (type == "ByteLevel") {
      is_of_bytes_ = true;
      TRY_OK(only(step, "pre_tokenizer", "add_prefix_space", false));
      TRY(const bool splits, flag_of(step, "pre_tokenizer", "use_regex", true));
      if (splits && rule_ != SplitRule::kNone) return refused("pre_tokenizer", step);
      if (splits) rule_ = SplitRule::kGpt2;
      return ok();
    }
    const auto rule = split_rule(step["pattern"]["Regex"].string_view_or(""));
    if (type != "Split" || rule_ != SplitRule::kNone || !rule)
      return refused("pre_tokenizer", step);
    TRY_OK(only(step, "pre_tokenizer", "behavior", "Isolated"));
    TRY_OK(only(step, "pre_tokenizer", "invert", false));
    rule_ = *rule;
    return ok();
  });
}

Status JsonTokenizer::read_metaspace(const json::Value& step) {
  const json::Value& scheme = step["prepend_scheme"];
  const auto prefix = scheme.is_null() ? "always" : scheme.string_view_or("");
  metaspace_ = step["replacement"].string_or("");
  if (metaspace_.empty() || (prefix != "always" && prefix != "first" && prefix != "never"))
    return refused("pre_tokenizer", step);
  // An older word for the same.
  TRY(const bool has_prefix, flag_of(step, "pre_tokenizer", "add_prefix_space", true));
  if (!has_prefix && prefix != "never") return refused("pre_tokenizer", step);
  has_metaspace_ = true;
  metaspace_prefix_ = prefix == "always"  ? Prefix::kAlways
                      : prefix == "first" ? Prefix::kFirst
                                          : Prefix::kNever;
  TRY(splits_at_metaspace_, flag_of(step, "pre_tokenizer", "split", true));
  return ok();
}

Status JsonTokenizer::read_model(const json::Value& model) {
  TRY_OK(only(model, "model", "type", "BPE"));
  const json::Value& dropout = model["dropout"];
  if (!dropout.is_null() && dropout.double_or(1) != 0) return refused("model.dropout", dropout);
  if (!model["vocab"].is_object()) return refused("model.vocab", model["vocab"]);
  if (!model["merges"].is_array()) return refused("model.merges", model["merges"]);
  for (const char* member : {"continuing_subword_prefix", "end_of_word_suffix"})
    TRY_OK(only(model, "model", member, ""));
  const ByteAlphabet alphabet;
  // What has no bytes in the alphabet of a byte-level model is no part of any text.
  const auto key_of = [&](const std::string& token) {
    return is_of_bytes_ ? alphabet.bytes_of(token) : std::optional<std::string>(token);
  };
  Bpe::Vocabulary vocabulary;
  for (const auto& [token, id] : model["vocab"].members()) {
    if (!id.is_int() || id.int_or(-1) < 0 || id.int_or(-1) > INT32_MAX - 1)
      return refused("model.vocab '" + excerpt(token) + "'", id);
    const auto number = static_cast<std::int32_t>(id.int_or(0));
    const auto key = key_of(token);
    if (key) vocabulary[*key] = number;
    if (!texts_.try_emplace(number, key.value_or(token)).second)
      return Error(Code::kInvalid, "tokenizer.json: model.vocab '" + excerpt(token) +
                                       "' has the id " + std::to_string(number) +
                                       ", which is another token's");
    tokens_[token] = number;
    vocabulary_ = std::max<std::int64_t>(vocabulary_, number + std::int64_t{1});
  }
  Bpe::Merges merges;
  for (const json::Value& merge : model["merges"].items()) {
    TRY(const auto pair, merge_of(merge, merges.size()));
    merges.emplace_back(key_of(pair.first).value_or(pair.first),
                        key_of(pair.second).value_or(pair.second));
  }
  BpeOptions options{.is_of_bytes = is_of_bytes_};
  TRY(options.has_byte_fallback, flag_of(model, "model", "byte_fallback", false));
  TRY(options.ignores_merges, flag_of(model, "model", "ignore_merges", false));
  TRY(options.fuses_unknown, flag_of(model, "model", "fuse_unk", false));
  if (const json::Value& name = model["unk_token"]; !name.is_null()) {
    const auto unknown = tokens_.find(name.string_or(""));
    if (!name.is_string() || unknown == tokens_.end()) return refused("model.unk_token", name);
    options.unknown = unknown->second;
  }
  auto bpe = Bpe::create(std::move(vocabulary), merges, options);
  if (!bpe.ok()) return bpe.error().in("tokenizer.json");
  bpe_ = std::move(bpe).value();
  return ok();
}

std::optional<std::int32_t> JsonTokenizer::find(std::string_view token) const {
  const auto found = tokens_.find(std::string(token));
  return found == tokens_.end() ? std::nullopt : std::optional(found->second);
}

Result<std::int32_t> JsonTokenizer::end_of_text(const std::string& name) const {
  if (!name.empty()) {
    if (const auto token = find(name)) return *token;
    return Error(Code::kInvalid, "no token is called " + name);
  }
  for (const char* known : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
    if (const auto token = find(known)) return *token;
  return Error(Code::kInvalid, "no token that ends a text is known; name it: --end");
}

const JsonTokenizer::Added* JsonTokenizer::added_at(std::string_view text, std::size_t at,
                                                    bool is_late) const {
  for (const Added& added : added_[static_cast<unsigned char>(text[at])])
    if (added.is_late == is_late && text.substr(at).starts_with(added.content)) return &added;
  return nullptr;
}

void JsonTokenizer::split_at_added(std::string_view text, bool is_late,
                                   std::vector<std::int32_t>& out,
                                   const std::function<void(std::string_view)>& plain) const {
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Added* added = added_at(text, at, is_late);
    if (added == nullptr) {
      ++at;
      continue;
    }
    if (at > begin) plain(text.substr(begin, at - begin));
    out.push_back(added->token);
    begin = at = at + added->content.size();
  }
  if (begin < text.size()) plain(text.substr(begin));
}

std::vector<std::int32_t> JsonTokenizer::encode(std::string_view given) const {
  const std::string text = valid_utf8(given);
  std::vector<std::int32_t> out;
  split_at_added(text, false, out, [&](std::string_view between) {
    split_at_added(between, true, out, [&](std::string_view plain) {
      encode_plain(plain, plain.data() == text.data(), out);
    });
  });
  return out;
}

void JsonTokenizer::encode_plain(std::string_view given, bool is_first,
                                 std::vector<std::int32_t>& out) const {
  std::string text(given);
  for (const auto& [what, by] : replacements_)
    text = what.empty() ? by + text : replaced(text, what, by);
  if (!has_metaspace_)
    return (isolates_digits_ ? pretokenize_digits : pretokenize)(
        rule_, text, [&](std::string_view piece) { bpe_->encode(piece, out); });
  text = replaced(text, " ", metaspace_);
  const bool wants_prefix =
      metaspace_prefix_ == Prefix::kAlways || (metaspace_prefix_ == Prefix::kFirst && is_first);
  if (wants_prefix && !text.starts_with(metaspace_)) text = metaspace_ + text;
  const std::string_view view = text;
  for (std::size_t at = 0; at < view.size();) {
    const std::size_t end =
        splits_at_metaspace_ ? std::min(view.find(metaspace_, at + 1), view.size()) : view.size();
    bpe_->encode(view.substr(at, end - at), out);
    at = end;
  }
}

std::string JsonTokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string out;
  for (const std::int32_t token : tokens) {
    const auto found = texts_.find(token);
    if (found == texts_.end()) continue;
    const auto byte = is_of_bytes_ ? std::nullopt : fallback_byte(found->second);
    if (byte)
      out.push_back(*byte);
    else
      out += is_of_bytes_ ? found->second : replaced(found->second, "\u2581", " ");
  }
  return out;
}

std::size_t JsonTokenizer::whole_part(std::string_view text, std::size_t searched) const {
  // Pieces end at white space, where no added token may go on.
  const bool is_local = is_of_bytes_ && replacements_.empty() && !has_added_space_;
  return is_local ? whole_pieces(rule_, text, searched) : 0;
}

}  // namespace rubato::worker
