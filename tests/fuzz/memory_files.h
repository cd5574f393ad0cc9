// MemoryFiles: a folder of files in memory, to be read; it cannot be written.
#pragma once

#include "common/files.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace rubato::fuzz {

class MemoryFile final : public File {
 public:
  explicit MemoryFile(std::string bytes) : bytes_(std::move(bytes)) {}
  Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> to) override {
    if (offset >= bytes_.size()) return std::size_t{0};
    const std::size_t size = std::min<std::size_t>(to.size(), bytes_.size() - offset);
    std::memcpy(to.data(), bytes_.data() + offset, size);
    return size;
  }
  Status write_at(std::uint64_t, std::span<const std::byte>) override {
    return Error(Code::kUnavailable, "read-only");
  }
  Result<std::uint64_t> size() const override { return bytes_.size(); }
  Status sync() override { return ok(); }

 private:
  std::string bytes_;
};

class MemoryFiles final : public FileSystem {
 public:
  std::map<std::string, std::string> files;  // by whole path

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    const auto found = files.find(path);
    if (mode != OpenMode::kRead || found == files.end()) return none(path);
    return std::unique_ptr<File>(std::make_unique<MemoryFile>(found->second));
  }
  Result<std::shared_ptr<const FileView>> map(const std::string& path) override {
    return none(path);
  }
  Result<FileStat> stat(const std::string& path) override {
    if (const auto found = files.find(path); found != files.end())
      return FileStat{false, found->second.size()};
    if (is_directory(path)) return FileStat{true, 0};
    return none(path);
  }
  Result<std::vector<std::string>> list(const std::string& path) override {
    std::vector<std::string> names;
    for (const auto& [name, text] : files) {
      if (!name.starts_with(path + "/")) continue;
      std::string below = name.substr(path.size() + 1);
      below.resize(std::min(below.size(), below.find('/')));
      if (names.empty() || names.back() != below) names.push_back(std::move(below));
    }
    if (names.empty()) return none(path);
    return names;
  }
  Status make_directories(const std::string& path) override { return none(path); }
  Result<std::string> make_unique_directory(const std::string& path) override { return none(path); }
  Status sync_directory(const std::string& path) override { return none(path); }
  Status rename(const std::string& path, const std::string&) override { return none(path); }
  Status remove_all(const std::string& path) override { return none(path); }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override { return none(path); }

 private:
  static Error none(const std::string& path) { return {Code::kNotFound, path + " is not there"}; }
  bool is_directory(const std::string& path) const {
    const auto next = files.lower_bound(path + "/");
    return next != files.end() && next->first.starts_with(path + "/");
  }
};

}  // namespace rubato::fuzz
