#include "worker/data/bpe.h"

#include "worker/data/utf8.h"

#include <queue>
#include <tuple>

#include <fmt/format.h>

namespace rubato::worker {

Result<Bpe> Bpe::create(Vocabulary vocabulary, const Merges& merges, const BpeOptions& options) {
  Bpe bpe;
  bpe.options_ = options;
  bpe.vocabulary_ = std::move(vocabulary);
  const auto find = [&](const std::string& token) {
    const auto at = bpe.vocabulary_.find(token);
    return at == bpe.vocabulary_.end() ? -1 : at->second;
  };
  std::int32_t rank = 0;
  for (const auto& [left, right] : merges) {
    const std::int32_t a = find(left), b = find(right), joined = find(left + right);
    if (a < 0 || b < 0 || joined < 0)
      return Error(Code::kInvalid, fmt::format("model.merges: entry {} joins what is not in "
                                               "model.vocab, or into what is not",
                                               rank));
    bpe.joins_.insert_or_assign(key(a, b), Join{rank, joined});
    ++rank;
  }
  for (int byte = 0; options.has_byte_fallback && byte < 256; ++byte) {
    const std::string name = fmt::format("<0x{:02X}>", byte);
    bpe.byte_tokens_.push_back(find(name));
    if (bpe.byte_tokens_.back() < 0)
      return Error(Code::kInvalid, "model.byte_fallback: model.vocab has no " + name);
  }
  return bpe;
}

std::vector<std::int32_t> Bpe::symbols_of(std::string_view piece) const {
  std::vector<std::int32_t> tokens;
  bool is_after_unknown = false;
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t bytes = options_.is_of_bytes ? 1 : code_point_at(piece, at).bytes;
    const auto found = vocabulary_.find(std::string(piece.substr(at, bytes)));
    const bool is_known = found != vocabulary_.end();
    if (is_known) {
      tokens.push_back(found->second);
    } else if (options_.has_byte_fallback) {
      for (const char byte : piece.substr(at, bytes))
        tokens.push_back(byte_tokens_[static_cast<unsigned char>(byte)]);
    } else if (options_.unknown && !(is_after_unknown && options_.fuses_unknown)) {
      tokens.push_back(*options_.unknown);
    }
    is_after_unknown = !is_known;
    at += bytes;
  }
  return tokens;
}

void Bpe::encode(std::string_view piece, std::vector<std::int32_t>& out) const {
  if (options_.ignores_merges) {
    const auto whole = vocabulary_.find(std::string(piece));
    if (whole != vocabulary_.end()) return out.push_back(whole->second);
  }
  const std::vector<std::int32_t> tokens = symbols_of(piece);
  std::vector<Symbol> symbols;
  symbols.reserve(tokens.size());
  const auto count = static_cast<std::int32_t>(tokens.size());
  for (std::int32_t i = 0; i < count; ++i)
    symbols.push_back({tokens[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  join(symbols);
  for (const Symbol& symbol : symbols)
    if (!symbol.is_gone) out.push_back(symbol.token);
}

void Bpe::join(std::vector<Symbol>& symbols) const {
  // Rank, place of the left one, the token that they become: the smallest first.
  using Candidate = std::tuple<std::int32_t, std::int32_t, std::int32_t>;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto at = [&](std::int32_t i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };
  const auto look = [&](std::int32_t left) {
    if (left < 0 || at(left).after < 0) return;
    const auto found = joins_.find(key(at(left).token, at(at(left).after).token));
    if (found != joins_.end()) candidates.emplace(found->second.rank, left, found->second.token);
  };
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(symbols.size()); ++i) look(i);
  while (!candidates.empty()) {
    const auto [rank, left, token] = candidates.top();
    candidates.pop();
    if (at(left).is_gone || at(left).after < 0) continue;
    const std::int32_t right = at(left).after;
    // The neighbours may have changed since.
    const auto found = joins_.find(key(at(left).token, at(right).token));
    if (found == joins_.end() || found->second.token != token) continue;
    at(left).token = token;
    at(left).after = at(right).after;
    at(right).is_gone = true;
    if (at(left).after >= 0) at(at(left).after).before = left;
    look(at(left).before);
    look(left);
  }
}

}  // namespace rubato::worker
