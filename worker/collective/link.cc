#include "worker/collective/link.h"

#include <array>

namespace rubato::worker {

Status Link::wait(MonoTime deadline) {
  if (now() >= deadline) return Error(Code::kTimeout, "link: nothing moved until the deadline");
  std::array<LinkWait, 1> waits{LinkWait{.link = this}};
  wait_among(waits, deadline);
  if (is_cut()) return Error(Code::kCancelled, "link was cut");
  return ok();
}

Status Link::read_all(void* to, std::size_t bytes, MonoTime deadline) {
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    TRY(const std::size_t moved, try_read(at, bytes));
    if (moved == 0) TRY_OK(wait(deadline));
    at += moved;
    bytes -= moved;
  }
  return ok();
}

Status Link::write_all(const void* from, std::size_t bytes, MonoTime deadline) {
  const auto* at = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    TRY(const std::size_t moved, try_write(at, bytes));
    if (moved == 0) TRY_OK(wait(deadline));
    at += moved;
    bytes -= moved;
  }
  return ok();
}

Status Link::send_frame(std::string_view body, MonoTime deadline) {
  CHECK_LE(body.size(), kLinkFrameBytes);
  std::string frame(4, '\0');
  for (unsigned i = 0; i < 4; ++i) frame[i] = static_cast<char>(body.size() >> (24 - 8 * i));
  frame.append(body);
  return write_all(frame.data(), frame.size(), deadline);
}

Result<std::string> Link::receive_frame(MonoTime deadline) {
  std::array<unsigned char, 4> head{};
  TRY_OK(read_all(head.data(), head.size(), deadline));
  std::size_t size = 0;
  for (const unsigned char byte : head) size = size << 8 | byte;
  if (size > kLinkFrameBytes) return Error(Code::kInternal, "link: frame is too long");
  std::string body(size, '\0');
  TRY_OK(read_all(body.data(), size, deadline));
  return body;
}

}  // namespace rubato::worker
