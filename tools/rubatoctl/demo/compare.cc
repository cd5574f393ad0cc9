#include "tools/rubatoctl/demo/compare.h"

#include "common/net/certificates.h"
#include "common/words.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include <fmt/core.h>

namespace rubato::ctl {
namespace {

constexpr std::size_t kStepRecordBytes = 32;  // of steps.bin

Result<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error(Code::kNotFound, "cannot read " + path);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return std::move(bytes).str();
}

std::string difference_of(const std::string& file, const std::string& a, const std::string& b) {
  const auto place = std::mismatch(
      a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())), b.begin());
  const auto at = static_cast<std::size_t>(place.first - a.begin());
  if (at == a.size() && at == b.size()) return "";
  if (at == std::min(a.size(), b.size()))
    return fmt::format("{} and {}", counted(a.size(), "byte"), counted(b.size(), "byte"));
  if (file == "steps.bin") return fmt::format("first at step {}", at / kStepRecordBytes + 1);
  return fmt::format("first at byte {}", at);
}

}  // namespace

Result<std::string> newest_checkpoint(const std::string& folder) {
  TRY(std::string name, read_file(folder + "/LATEST"));
  name.erase(name.find_last_not_of(" \n") + 1);
  return folder + "/" + name;
}

Result<std::vector<FileVerdict>> compare_checkpoints(const std::string& first,
                                                     const std::string& second) {
  TRY(const std::string left, newest_checkpoint(first));
  TRY(const std::string right, newest_checkpoint(second));
  std::vector<FileVerdict> verdicts;
  for (const char* file : {"steps.bin", "model.safetensors", "optimizer.safetensors"}) {
    TRY(const std::string a, read_file(left + "/" + file));
    TRY(const std::string b, read_file(right + "/" + file));
    verdicts.push_back(
        {file, a == b, net::sha256_hex(a), net::sha256_hex(b), difference_of(file, a, b)});
  }
  return verdicts;
}

}  // namespace rubato::ctl
