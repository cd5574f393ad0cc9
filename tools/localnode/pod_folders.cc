#include "tools/localnode/pod_folders.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

namespace rubato::localnode {

namespace fs = std::filesystem;

void clear_pod_folder(const std::string& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().extension() != ".log") fs::remove_all(entry.path(), ignored);
}

void clear_pod_folders(const std::string& root) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root + "/pods", ignored))
    clear_pod_folder(entry.path().string());
}

void remove_gone_pods(const std::string& root, const std::set<std::string>& present,
                      std::size_t kept) {
  std::vector<std::pair<fs::file_time_type, fs::path>> gone;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root + "/pods", ignored))
    if (!present.contains(entry.path().filename().string()))
      gone.emplace_back(entry.last_write_time(ignored), entry.path());
  std::sort(gone.begin(), gone.end(), std::greater<>());
  for (std::size_t i = kept; i < gone.size(); ++i) fs::remove_all(gone[i].second, ignored);
}

}  // namespace rubato::localnode
