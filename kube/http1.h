// Http1Decoder: reads one HTTP/1.1 response as its bytes arrive: head, then a body that is chunked,
// of known length, or ends with the connection. Pure: no I/O. Every part is bounded; a violation is
// kInternal and final.
#pragma once

#include "common/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rubato::kube {

constexpr std::size_t kHttpHeadBytesMax = 64u << 10;
constexpr std::size_t kHttpChunkLineMax = 256;

class Http1Decoder {
 public:
  // Takes all of `bytes`; body bytes are appended to `body`.
  Status feed(std::string_view bytes, std::string& body);
  // The peer closed: fine for a body that ends with the connection, kUnavailable otherwise.
  Status end();

  bool has_head() const { return state_ > State::kHead; }
  bool is_complete() const { return state_ == State::kDone; }
  int status() const { return status_; }
  // Value of a header, by lower-case name; empty when absent.
  std::string_view header(std::string_view name) const;

 private:
  enum class State { kHead, kChunkSize, kChunk, kChunkEnd, kTrailer, kLength, kUntilClose, kDone };
  Status parse_head();
  Status parse_chunk_size();
  // Moves bytes up to a newline into line_; true when the line is complete.
  Result<bool> take_line(std::string_view& bytes, std::size_t most);
  Result<bool> step(std::string_view& bytes, std::string& body);  // false: needs more bytes

  State state_ = State::kHead;
  std::string line_;
  std::uint64_t left_ = 0;  // of the chunk or of the body
  int status_ = 0;
  std::vector<std::pair<std::string, std::string>> headers_;
};

}  // namespace rubato::kube
