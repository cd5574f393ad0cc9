#include "operator/control/snapshot_folder.h"

#include "common/log.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include <fmt/format.h>

namespace rubato::control {
namespace {

constexpr std::string_view kBefore = "round-";
constexpr std::string_view kAfter = ".json";

// Of a file that one of us has written.
std::optional<std::uint64_t> number_of(std::string_view name) {
  if (!name.starts_with(kBefore) || !name.ends_with(kAfter)) return std::nullopt;
  name.remove_prefix(kBefore.size());
  name.remove_suffix(kAfter.size());
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

}  // namespace

void SnapshotFolder::add(const sched::Snapshot& snapshot) {
  sched::Snapshot lasting = without_time(snapshot);
  if (lasting == last_) return;
  const Status written = write(to_text(snapshot) + "\n");
  if (written.ok()) {
    last_ = std::move(lasting);
  } else if (!told_) {
    LOG_WARNING("scheduler", "snapshots are not recorded: {}", written.error().what());
  }
  told_ = !written.ok();
}

Status SnapshotFolder::write(const std::string& text) {
  if (!looked_) TRY_OK(look());
  const std::string name = fmt::format("{}{:09}{}", kBefore, next_, kAfter);
  TRY_OK(replace_file(files_, folder_ + "/" + name, text));
  ++next_;
  there_.push_back(name);
  while (there_.size() > kept_) {
    TRY_OK(files_.remove_all(folder_ + "/" + there_.front()));
    there_.pop_front();
  }
  return ok();
}

Status SnapshotFolder::look() {
  TRY_OK(files_.make_directories(folder_));
  TRY(const std::vector<std::string> names, files_.list(folder_));
  std::vector<std::pair<std::uint64_t, std::string>> ours;
  for (const std::string& name : names)
    if (const auto number = number_of(name)) ours.emplace_back(*number, name);
  std::sort(ours.begin(), ours.end());
  for (auto& [number, name] : ours) {
    next_ = number + 1;
    there_.push_back(std::move(name));
  }
  looked_ = true;
  return ok();
}

}  // namespace rubato::control
