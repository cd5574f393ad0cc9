#include "kube/http1.h"

#include "common/words.h"

#include <algorithm>
#include <charconv>

namespace rubato::kube {
namespace {

constexpr std::uint64_t kLengthMax = std::uint64_t{1} << 40;

Error broken(const char* what) { return Error(Code::kInternal, std::string("HTTP: ") + what); }

std::string_view trimmed_line(std::string_view text) { return trimmed(text, " \t\r"); }

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

bool parse_number(std::string_view text, int base, std::uint64_t& value) {
  const auto end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value, base);
  return parsed.ec == std::errc{} && parsed.ptr == end && value <= kLengthMax;
}

}  // namespace

std::string_view Http1Decoder::header(std::string_view name) const {
  for (const auto& [key, value] : headers_) {
    if (key == name) return value;
  }
  return {};
}

Result<bool> Http1Decoder::take_line(std::string_view& bytes, std::size_t most) {
  const auto newline = bytes.find('\n');
  const std::string_view part = bytes.substr(0, newline);
  if (line_.size() + part.size() > most) return broken("a line is too long");
  line_ += part;
  bytes.remove_prefix(newline == std::string_view::npos ? bytes.size() : newline + 1);
  return newline != std::string_view::npos;
}

Status Http1Decoder::feed(std::string_view bytes, std::string& body) {
  while (!bytes.empty() && state_ != State::kDone) {
    TRY(const bool more, step(bytes, body));
    if (!more) break;
  }
  if (!bytes.empty()) return broken("bytes after the end of the response");
  return ok();
}

Result<bool> Http1Decoder::step(std::string_view& bytes, std::string& body) {
  switch (state_) {
    case State::kHead: {
      // The head is gathered as a whole, newlines included, up to the empty line.
      const std::size_t before = line_.size();
      TRY(const bool complete, take_line(bytes, kHttpHeadBytesMax));
      if (!complete) return false;
      const bool empty_line =
          trimmed_line(std::string_view(line_).substr(
                           line_.rfind('\n') == std::string::npos ? 0 : line_.rfind('\n') + 1))
              .empty();
      if (before == 0 && empty_line) return broken("no status line");
      line_ += '\n';
      if (!empty_line) return true;
      TRY_OK(parse_head());
      return true;
    }
    case State::kChunkSize: {
      TRY(const bool complete, take_line(bytes, kHttpChunkLineMax));
      if (complete) TRY_OK(parse_chunk_size());
      return complete;
    }
    case State::kChunk:
    case State::kLength: {
      const auto count = std::min<std::uint64_t>(left_, bytes.size());
      body.append(bytes.substr(0, count));
      bytes.remove_prefix(count);
      left_ -= count;
      if (left_ == 0) state_ = state_ == State::kChunk ? State::kChunkEnd : State::kDone;
      return true;
    }
    case State::kChunkEnd: {
      TRY(const bool complete, take_line(bytes, kHttpChunkLineMax));
      if (!complete) return false;
      if (!trimmed_line(line_).empty()) return broken("a chunk does not end where it should");
      line_.clear();
      state_ = State::kChunkSize;
      return true;
    }
    case State::kTrailer: {
      TRY(const bool complete, take_line(bytes, kHttpHeadBytesMax));
      if (!complete) return false;
      if (trimmed_line(line_).empty()) state_ = State::kDone;
      line_.clear();
      return true;
    }
    case State::kUntilClose:
      body.append(bytes);
      bytes = {};
      return true;
    case State::kDone:
      return true;
  }
  return true;
}

Status Http1Decoder::parse_chunk_size() {
  const std::string_view size = trimmed_line(std::string_view(line_).substr(0, line_.find(';')));
  if (!parse_number(size, 16, left_)) return broken("a chunk size is not a number");
  line_.clear();
  state_ = left_ == 0 ? State::kTrailer : State::kChunk;
  return ok();
}

Status Http1Decoder::parse_head() {
  std::string_view rest = line_;
  const std::string_view first = trimmed_line(rest.substr(0, rest.find('\n')));
  rest.remove_prefix(rest.find('\n') + 1);
  std::uint64_t status = 0;
  if (first.substr(0, 7) != "HTTP/1." || first.size() < 12 ||
      !parse_number(first.substr(9, 3), 10, status))
    return broken("not an HTTP/1 response");
  headers_.clear();
  while (!rest.empty()) {
    const auto newline = rest.find('\n');
    const std::string_view line = trimmed_line(rest.substr(0, newline));
    rest.remove_prefix(newline + 1);
    const auto colon = line.find(':');
    if (line.empty()) continue;
    if (colon == std::string_view::npos) return broken("a header without a colon");
    headers_.emplace_back(lower(trimmed_line(line.substr(0, colon))),
                          trimmed_line(line.substr(colon + 1)));
  }
  line_.clear();
  if (status < 200) return ok();  // 1xx: the real response follows
  status_ = static_cast<int>(status);
  if (status == 204 || status == 304) {
    state_ = State::kDone;
  } else if (lower(header("transfer-encoding")) == "chunked") {
    state_ = State::kChunkSize;
  } else if (const auto length = header("content-length"); !length.empty()) {
    if (!parse_number(length, 10, left_)) return broken("Content-Length is not a number");
    state_ = left_ == 0 ? State::kDone : State::kLength;
  } else {
    state_ = State::kUntilClose;
  }
  return ok();
}

Status Http1Decoder::end() {
  if (state_ == State::kUntilClose) state_ = State::kDone;
  if (state_ == State::kDone) return ok();
  return Error(Code::kUnavailable, "the connection was closed in the middle of a response");
}

}  // namespace rubato::kube
