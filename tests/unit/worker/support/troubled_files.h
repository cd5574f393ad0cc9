// TroubledFiles: files of which some cannot be read, listed, renamed or removed.
#pragma once

#include "common/files.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace rubato::worker {

class TroubledFiles : public FileSystem {
 public:
  explicit TroubledFiles(FileSystem& files) : files_(files) {}
  std::function<Status(const std::string& path)> on_open = [](const std::string&) { return ok(); };
  std::function<Status(const std::string& path)> on_remove = on_open;
  std::function<Status(const std::string& path)> on_stat = on_open;
  std::function<Status(const std::string& path)> on_list = on_open;
  std::function<Status(const std::string& to)> on_rename = on_open;

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    TRY_OK(on_open(path));
    return files_.open(path, mode);
  }
  Result<std::shared_ptr<const FileView>> map(const std::string& path) override {
    return files_.map(path);
  }
  Result<FileStat> stat(const std::string& path) override {
    TRY_OK(on_stat(path));
    return files_.stat(path);
  }
  Result<std::vector<std::string>> list(const std::string& path) override {
    TRY_OK(on_list(path));
    return files_.list(path);
  }
  Status make_directories(const std::string& path) override {
    return files_.make_directories(path);
  }
  Result<std::string> make_unique_directory(const std::string& prefix) override {
    return files_.make_unique_directory(prefix);
  }
  Status sync_directory(const std::string& path) override { return files_.sync_directory(path); }
  Status rename(const std::string& from, const std::string& to) override {
    TRY_OK(on_rename(to));
    return files_.rename(from, to);
  }
  Status remove_all(const std::string& path) override {
    TRY_OK(on_remove(path));
    return files_.remove_all(path);
  }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override {
    return files_.lock(path);
  }

 private:
  FileSystem& files_;
};

}  // namespace rubato::worker
