#include "common/testing/sim_volume.h"

#include <algorithm>
#include <cstring>
#include <ranges>

namespace rubato::testing {

namespace {

// How much of what was not synced is there after a power cut.
enum Survival { kNothing, kAll, kPrefix, kSubset, kSurvivals };

std::vector<bool> survivors(std::size_t count, Rng& rng) {
  const auto how = static_cast<Survival>(rng.below(kSurvivals));
  const std::size_t prefix = rng.below(count + 1);
  std::vector<bool> kept(count);
  for (std::size_t i = 0; i < count; ++i)
    kept[i] = how == kAll || (how == kPrefix && i < prefix) || (how == kSubset && rng.chance(0.5));
  return kept;
}

std::span<const std::byte> block_of(const std::vector<std::byte>& bytes, std::uint64_t block) {
  const std::uint64_t begin = std::min<std::uint64_t>(block * kSimBlockBytes, bytes.size());
  const std::uint64_t end = std::min<std::uint64_t>(begin + kSimBlockBytes, bytes.size());
  return std::span(bytes).subspan(begin, end - begin);
}

void put_block(std::vector<std::byte>& bytes, std::uint64_t block,
               std::span<const std::byte> from) {
  const std::uint64_t begin = block * kSimBlockBytes;
  if (bytes.size() < begin + from.size()) bytes.resize(begin + from.size());
  if (!from.empty()) std::memcpy(bytes.data() + begin, from.data(), from.size());
}

}  // namespace

std::vector<std::string> sim_path_parts(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < path.size();) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    if (slash > at && path.substr(at, slash - at) != ".")
      parts.push_back(path.substr(at, slash - at));
    at = slash + 1;
  }
  return parts;
}

void SimNode::write(std::uint64_t offset, std::span<const std::byte> bytes, const std::string& by) {
  if (bytes.empty()) return;
  const std::uint64_t end = offset + bytes.size();
  const std::uint64_t first = std::min<std::uint64_t>(offset, live.size()) / kSimBlockBytes;
  if (live.size() < end) live.resize(end);
  std::memcpy(live.data() + offset, bytes.data(), bytes.size());
  for (std::uint64_t block = first; block * kSimBlockBytes < end; ++block) dirty[block] = by;
}

void SimNode::truncate(const std::string& by) {
  if (live.empty()) return;
  live.clear();
  dirty.clear();
  truncated_by = by;
}

void SimNode::sync() {
  durable = live;
  dirty.clear();
  truncated_by.clear();
}

void SimNode::lose_power(const std::string& by, Rng& rng) {
  const auto is_lost = [&](const std::string& writer) { return by.empty() || writer == by; };
  if (!truncated_by.empty() && is_lost(truncated_by)) {
    if (rng.chance(0.5)) durable.clear();
    truncated_by.clear();
  }
  std::vector<std::uint64_t> blocks;
  for (const auto& [block, writer] : dirty)
    if (is_lost(writer)) blocks.push_back(block);
  const std::vector<bool> kept = survivors(blocks.size(), rng);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (kept[i]) put_block(durable, blocks[i], block_of(live, blocks[i]));
    dirty.erase(blocks[i]);
  }
  std::vector<std::byte> now = durable;
  for (const auto& [block, writer] : dirty) put_block(now, block, block_of(live, block));
  live = std::move(now);
}

SimNodePtr SimVolume::Impl::make(bool is_directory) {
  auto node = std::make_shared<SimNode>();
  node->is_directory = is_directory;
  if (nodes.size() % 64 == 63)
    std::erase_if(nodes, [](const auto& weak) { return weak.expired(); });
  nodes.push_back(node);
  return node;
}

SimNodePtr SimVolume::Impl::look(const SimNode& directory, const std::string& name,
                                 const std::string& by) const {
  const auto found = directory.names.find(name);
  if (found == directory.names.end()) return nullptr;
  const auto& changes = found->second.changes;
  for (const auto& change : std::views::reverse(changes))
    if (change.by == by || change.at + faults.lag <= executor.now()) return change.node;
  return nullptr;
}

SimNodePtr SimVolume::Impl::find(const std::string& path, const std::string& by) const {
  SimNodePtr at = root;
  for (const std::string& part : sim_path_parts(path)) {
    if (!at || !at->is_directory) return nullptr;
    at = look(*at, part, by);
  }
  return at;
}

void SimVolume::Impl::change(const std::string& by, std::vector<SimNameOperation::Part> parts) {
  for (const SimNameOperation::Part& part : parts) {
    auto& changes = part.directory->names[part.name].changes;
    changes.push_back({executor.now(), by, part.node});
    if (changes.size() > kNameHistory) changes.erase(changes.begin());
  }
  pending.push_back({next_operation++, by, std::move(parts)});
}

void SimVolume::Impl::make_durable(const SimNameOperation& operation) {
  for (const SimNameOperation::Part& part : operation.parts) {
    SimName& name = part.directory->names[part.name];
    if (operation.number < name.durable_since) continue;
    name.durable = part.node;
    name.durable_since = operation.number;
  }
}

void SimVolume::Impl::sync_directory(const SimNodePtr& directory) {
  std::vector<SimNameOperation> later;
  for (SimNameOperation& operation : pending) {
    const bool touches = std::ranges::any_of(
        operation.parts, [&](const auto& part) { return part.directory == directory; });
    if (touches)
      make_durable(operation);
    else
      later.push_back(std::move(operation));
  }
  pending = std::move(later);
}

void SimVolume::Impl::lose_power(const std::string& by) {
  std::vector<SimNameOperation> later;
  std::vector<SimNameOperation> unsure;
  for (SimNameOperation& operation : pending)
    (by.empty() || operation.by == by ? unsure : later).push_back(std::move(operation));
  const std::vector<bool> kept = survivors(unsure.size(), rng);
  for (std::size_t i = 0; i < unsure.size(); ++i)
    if (kept[i]) make_durable(unsure[i]);
  pending = std::move(later);
  // Names are what is durable, and what others have not synced yet.
  for (const auto& weak : nodes) {
    const SimNodePtr node = weak.lock();
    if (!node) continue;
    if (!node->is_directory) node->lose_power(by, rng);
    for (auto& [name, about] : node->names) about.changes = {{MonoTime{}, "", about.durable}};
  }
  for (auto& [name, about] : root->names) about.changes = {{MonoTime{}, "", about.durable}};
  for (const SimNameOperation& operation : pending)
    for (const auto& part : operation.parts)
      part.directory->names[part.name].changes.push_back({executor.now(), operation.by, part.node});
  if (by.empty()) locks.clear();
}

std::uint64_t SimVolume::Impl::used() const {
  std::uint64_t bytes = 0;
  std::vector<const SimNode*> open{root.get()};
  while (!open.empty()) {
    const SimNode* node = open.back();
    open.pop_back();
    bytes += node->live.size();
    for (const auto& [name, about] : node->names)
      if (!about.changes.empty() && about.changes.back().node)
        open.push_back(about.changes.back().node.get());
  }
  return bytes;
}

SimVolume::SimVolume(SimExecutor& executor, std::uint64_t seed)
    : impl_(std::make_shared<Impl>(executor, seed)) {}
SimVolume::~SimVolume() = default;

SimDiskFaults& SimVolume::faults() { return impl_->faults; }
void SimVolume::lose_power(const std::string& node) { impl_->lose_power(node); }
void SimVolume::watch(std::function<void(const std::string&)> fn) { impl_->watch = std::move(fn); }
std::uint64_t SimVolume::used() const { return impl_->used(); }

Status SimVolume::flip_bit(const std::string& path, std::uint64_t byte, int bit) {
  SimNodePtr node = impl_->root;
  for (const std::string& part : sim_path_parts(path)) {
    const auto found = node->names.find(part);
    node = found == node->names.end() || found->second.changes.empty()
               ? nullptr
               : found->second.changes.back().node;
    if (!node) return Error(Code::kNotFound, path + ": no such file");
  }
  if (byte >= node->live.size())
    return Error(Code::kInvalid, path + " has " + std::to_string(node->live.size()) + " bytes");
  const auto flip = std::byte{1} << bit;
  node->live[byte] ^= flip;
  if (byte < node->durable.size()) node->durable[byte] ^= flip;
  return ok();
}

}  // namespace rubato::testing
