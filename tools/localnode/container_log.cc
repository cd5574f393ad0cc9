#include "tools/localnode/container_log.h"

#include <algorithm>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace rubato::localnode {

ContainerLog::ContainerLog(Executor& executor, std::string path)
    : executor_(executor), path_(std::move(path)), grown_(executor.make_condition()) {
  fd_ = ::open(path_.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
}

ContainerLog::~ContainerLog() {
  if (fd_ >= 0) ::close(fd_);
}

void ContainerLog::append(std::string_view bytes) {
  std::lock_guard lock(mutex_);
  partial_ += bytes;
  std::size_t begin = 0;
  while (true) {
    std::size_t end = partial_.find('\n', begin);
    if (end == std::string::npos && partial_.size() - begin >= kLogLineMax)
      end = begin + kLogLineMax;
    if (end == std::string::npos) break;
    write_line(std::string_view(partial_).substr(begin, end - begin));
    begin = end < partial_.size() && partial_[end] == '\n' ? end + 1 : end;
  }
  partial_.erase(0, begin);
  grown_->notify_all();
}

void ContainerLog::finish() {
  std::lock_guard lock(mutex_);
  if (!partial_.empty()) write_line(partial_);
  partial_.clear();
  finished_ = true;
  grown_->notify_all();
}

void ContainerLog::write_line(std::string_view line) {
  std::string text = to_rfc3339_micro(executor_.clock().wall()) + " ";
  text += line;
  text += '\n';
  if (::pwrite(fd_, text.data(), text.size(), static_cast<off_t>(size_)) ==
      static_cast<ssize_t>(text.size())) {
    size_ += text.size();
  }
  if (size_ > kLogBytesMax) trim();
}

// Keeps the newer half, from a line's beginning.
void ContainerLog::trim() {
  std::vector<char> kept(size_ / 2);
  const auto from = static_cast<off_t>(size_ - kept.size());
  if (::pread(fd_, kept.data(), kept.size(), from) != static_cast<ssize_t>(kept.size())) return;
  const auto newline = std::find(kept.begin(), kept.end(), '\n');
  if (newline == kept.end()) return;
  const std::size_t skip = static_cast<std::size_t>(newline - kept.begin()) + 1;
  const std::size_t left = kept.size() - skip;
  if (::pwrite(fd_, kept.data() + skip, left, 0) != static_cast<ssize_t>(left)) return;
  (void)!::ftruncate(fd_, static_cast<off_t>(left));
  dropped_ += size_ - left;
  size_ = left;
}

std::optional<std::string> ContainerLog::read(std::uint64_t& offset, std::size_t limit,
                                              MonoTime deadline) {
  std::unique_lock lock(mutex_);
  grown_->wait_until(lock, deadline, [&] { return finished_ || offset < dropped_ + size_; });
  offset = std::max(offset, dropped_);
  if (offset >= dropped_ + size_) {
    if (finished_) return std::nullopt;
    return std::string();
  }
  std::string text(std::min<std::uint64_t>(limit, dropped_ + size_ - offset), '\0');
  const ssize_t n = ::pread(fd_, text.data(), text.size(), static_cast<off_t>(offset - dropped_));
  if (n <= 0) return std::string();
  text.resize(static_cast<std::size_t>(n));
  const std::size_t newline = text.rfind('\n');
  if (newline != std::string::npos) text.resize(newline + 1);
  offset += text.size();
  return text;
}

std::uint64_t ContainerLog::size() const {
  std::lock_guard lock(mutex_);
  return dropped_ + size_;
}

std::uint64_t ContainerLog::tail(std::size_t lines) const {
  std::lock_guard lock(mutex_);
  std::uint64_t at = size_;
  std::size_t seen = 0;
  std::vector<char> block(64u << 10);
  while (at > 0) {
    const std::uint64_t begin = at > block.size() ? at - block.size() : 0;
    const ssize_t n = ::pread(fd_, block.data(), at - begin, static_cast<off_t>(begin));
    if (n <= 0) break;
    for (ssize_t i = n; i-- > 0;) {
      if (block[static_cast<std::size_t>(i)] != '\n') continue;
      if (seen++ == lines) return dropped_ + begin + static_cast<std::uint64_t>(i) + 1;
    }
    at = begin;
  }
  return dropped_;
}

}  // namespace rubato::localnode
