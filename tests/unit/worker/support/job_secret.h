// JobSecret: a folder with tls.crt, tls.key and ca.crt as a job's Secret holds them, made by a
// fresh authority; removed at the end.
#pragma once

#include <filesystem>
#include <string>

namespace rubato::worker {

class JobSecret {
 public:
  explicit JobSecret(const std::string& job_uid);
  ~JobSecret();
  JobSecret(const JobSecret&) = delete;
  JobSecret& operator=(const JobSecret&) = delete;
  std::string dir() const { return dir_.string(); }

 private:
  std::filesystem::path dir_;
};

}  // namespace rubato::worker
