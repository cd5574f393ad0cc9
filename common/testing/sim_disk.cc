// The view of one process: paths to volumes, waits, faults.
#include "common/testing/sim_disk.h"

#include "common/testing/sim_volume.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rubato::testing {

using VolumePtr = std::shared_ptr<SimVolume::Impl>;

namespace {
constexpr int kUniqueTries = 100;

Error no_such(const std::string& path) {
  return {Code::kNotFound, path + ": no such file or directory"};
}
}  // namespace

struct SimDisk::Impl : std::enable_shared_from_this<Impl> {
  Impl(SimProcess& owner, std::string name) : process(owner), node(std::move(name)) {}

  // A path, resolved: its volume, and where in it.
  struct Place {
    VolumePtr volume;
    std::string path;
  };
  Result<Place> place(const std::string& path) const {
    for (const auto& [at, volume] : mounts) {  // the longest first
      const bool fits = at == "/" || path == at || path.starts_with(at + "/");
      if (fits) return Place{volume, at == "/" ? path : path.substr(at.size())};
    }
    return no_such(path);
  }

  // Waits as slow disks do, then fails as broken ones do.
  Status begin(SimVolume::Impl& volume, const std::string& what, bool changes) {
    if (changes && volume.watch) volume.watch(what);
    Duration wait = volume.faults.delay;
    if (volume.faults.jitter > Duration(0))
      wait += Duration(static_cast<std::int64_t>(
          volume.rng.below(static_cast<std::uint64_t>(volume.faults.jitter.count()))));
    if (wait > Duration(0)) process.sleep_for(wait);
    if (volume.faults.broken) return Error(Code::kUnavailable, what + ": Input/output error");
    return ok();
  }

  // The directory that holds the last name of a path, and that name.
  Result<std::pair<SimNodePtr, std::string>> parent(const Place& at, const std::string& path) {
    auto parts = sim_path_parts(at.path);
    if (parts.empty()) return Error(Code::kAlreadyExists, path + " is a mount point");
    const std::string& name = parts.back();
    const SimNodePtr directory = at.volume->find(parent_of("/" + at.path), node);
    if (!directory || !directory->is_directory) return no_such(path);
    return std::pair(directory, name);
  }

  Status remove(SimVolume::Impl& volume, const SimNodePtr& directory, const std::string& name,
                const SimNodePtr& what, const std::string& path) {
    std::vector<std::string> inside;
    for (const auto& [child, about] : what->names) inside.push_back(child);
    for (const std::string& child : inside)
      if (const SimNodePtr node_of_child = volume.look(*what, child, node))
        TRY_OK(remove(volume, what, child, node_of_child, path + "/" + child));
    TRY_OK(begin(volume, "remove " + path, true));
    volume.change(node, {{directory, name, nullptr}});
    return ok();
  }

  SimProcess& process;
  const std::string node;
  std::vector<std::pair<std::string, VolumePtr>> mounts;
};

namespace {

class SimFile : public File {
 public:
  SimFile(std::shared_ptr<SimDisk::Impl> disk, VolumePtr volume, SimNodePtr node, std::string path,
          bool is_writable)
      : disk_(std::move(disk)),
        volume_(std::move(volume)),
        node_(std::move(node)),
        path_(std::move(path)),
        is_writable_(is_writable) {}

  Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> to) override {
    TRY_OK(disk_->begin(*volume_, "read " + path_, false));
    const auto& bytes = node_->live;
    if (offset >= bytes.size()) return std::size_t{0};
    const std::size_t size = std::min<std::size_t>(to.size(), bytes.size() - offset);
    if (size > 0) std::memcpy(to.data(), bytes.data() + offset, size);
    return size;
  }

  Status write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    if (!is_writable_) return Error(Code::kUnavailable, path_ + " is not open for writing");
    TRY_OK(disk_->begin(*volume_, "write " + path_, true));
    const std::uint64_t size = node_->live.size();
    const std::uint64_t grows = std::max(offset + bytes.size(), size) - size;
    const std::uint64_t used = grows == 0 ? 0 : volume_->used();
    if (used + grows > volume_->faults.capacity) {  // what fits is written, as by write(2)
      const std::uint64_t room =
          volume_->faults.capacity - std::min(volume_->faults.capacity, used);
      const std::uint64_t fits = size + room > offset ? size + room - offset : 0;
      node_->write(offset, bytes.first(std::min<std::uint64_t>(fits, bytes.size())), disk_->node);
      return Error(Code::kExhausted, "writing " + path_ + ": No space left on device");
    }
    node_->write(offset, bytes, disk_->node);
    return ok();
  }

  Result<std::uint64_t> size() const override {
    return static_cast<std::uint64_t>(node_->live.size());
  }

  Status sync() override {
    TRY_OK(disk_->begin(*volume_, "sync " + path_, true));
    node_->sync();
    return ok();
  }

 private:
  const std::shared_ptr<SimDisk::Impl> disk_;
  const VolumePtr volume_;
  const SimNodePtr node_;
  const std::string path_;
  const bool is_writable_;
};

class SimView : public FileView {
 public:
  explicit SimView(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  std::span<const std::byte> bytes() const override { return bytes_; }

 private:
  const std::vector<std::byte> bytes_;
};

class SimLock : public FileLock {
 public:
  SimLock(VolumePtr volume, std::string path, const void* holder)
      : volume_(std::move(volume)), path_(std::move(path)), holder_(holder) {}
  ~SimLock() override {
    const auto found = volume_->locks.find(path_);
    if (found != volume_->locks.end() && found->second == holder_) volume_->locks.erase(found);
  }

 private:
  const VolumePtr volume_;
  const std::string path_;
  const void* holder_;
};

}  // namespace

SimDisk::SimDisk(SimProcess& process, std::string node)
    : impl_(std::make_shared<Impl>(process, std::move(node))) {}
SimDisk::~SimDisk() = default;

void SimDisk::mount(const std::string& path, SimVolume& volume) {
  impl_->mounts.emplace_back(path, volume.impl_);
  std::ranges::stable_sort(impl_->mounts, std::greater{},
                           [](const auto& mount) { return mount.first.size(); });
  impl_->process.on_crash([disk = impl_.get(), weak = std::weak_ptr(volume.impl_)] {
    if (const VolumePtr there = weak.lock())
      std::erase_if(there->locks, [&](const auto& lock) { return lock.second == disk; });
  });
}

Result<std::unique_ptr<File>> SimDisk::open(const std::string& path, OpenMode mode) {
  TRY(const Impl::Place at, impl_->place(path));
  const bool writes = mode != OpenMode::kRead;
  TRY_OK(impl_->begin(*at.volume, "open " + path, writes));
  SimNodePtr node = at.volume->find(at.path, impl_->node);
  if (!node && !writes) return no_such(path);
  if (node && node->is_directory) return Error(Code::kUnavailable, path + " is a directory");
  if (!node) {
    TRY(const auto parent, impl_->parent(at, path));
    node = at.volume->make(false);
    at.volume->change(impl_->node, {{parent.first, parent.second, node}});
  } else if (mode == OpenMode::kCreate) {
    node->truncate(impl_->node);
  }
  return std::unique_ptr<File>(std::make_unique<SimFile>(impl_, at.volume, node, path, writes));
}

Result<std::shared_ptr<const FileView>> SimDisk::map(const std::string& path) {
  TRY(const auto file, open(path, OpenMode::kRead));
  TRY(const std::uint64_t size, file->size());
  std::vector<std::byte> bytes(size);
  TRY(const std::size_t got, file->read_at(0, bytes));
  bytes.resize(got);
  return std::shared_ptr<const FileView>(std::make_shared<SimView>(std::move(bytes)));
}

Result<FileStat> SimDisk::stat(const std::string& path) {
  TRY(const Impl::Place at, impl_->place(path));
  TRY_OK(impl_->begin(*at.volume, "stat " + path, false));
  const SimNodePtr node = at.volume->find(at.path, impl_->node);
  if (!node) return no_such(path);
  return FileStat{node->is_directory, node->live.size()};
}

Result<std::vector<std::string>> SimDisk::list(const std::string& path) {
  TRY(const Impl::Place at, impl_->place(path));
  TRY_OK(impl_->begin(*at.volume, "list " + path, false));
  const SimNodePtr node = at.volume->find(at.path, impl_->node);
  if (!node || !node->is_directory) return no_such(path);
  std::vector<std::string> names;
  for (const auto& [name, about] : node->names)
    if (at.volume->look(*node, name, impl_->node)) names.push_back(name);
  return names;
}

Status SimDisk::make_directories(const std::string& path) {
  TRY(const Impl::Place at, impl_->place(path));
  SimNodePtr node = at.volume->root;
  for (const std::string& part : sim_path_parts(at.path)) {
    SimNodePtr next = at.volume->look(*node, part, impl_->node);
    if (!next) {
      TRY_OK(impl_->begin(*at.volume, "mkdir " + path, true));
      next = at.volume->look(*node, part, impl_->node);  // another process may have made it
    }
    if (!next) {
      next = at.volume->make(true);
      at.volume->change(impl_->node, {{node, part, next}});
    }
    if (!next->is_directory) return Error(Code::kNotFound, path + ": not a directory");
    node = next;
  }
  return ok();
}

Result<std::string> SimDisk::make_unique_directory(const std::string& prefix) {
  TRY(const Impl::Place at, impl_->place(prefix));
  TRY_OK(impl_->begin(*at.volume, "mkdir " + prefix, true));
  for (int i = 0; i < kUniqueTries; ++i) {
    std::string tail;
    for (int c = 0; c < 6; ++c)
      tail.push_back(static_cast<char>('a' + static_cast<char>(at.volume->rng.below(26))));
    const Impl::Place made{at.volume, at.path + tail};
    TRY(const auto parent, impl_->parent(made, prefix + tail));
    if (parent.first->names.contains(parent.second)) continue;
    at.volume->change(impl_->node, {{parent.first, parent.second, at.volume->make(true)}});
    return prefix + tail;
  }
  return Error(Code::kAlreadyExists, prefix + ": no name is left");
}

Status SimDisk::sync_directory(const std::string& path) {
  TRY(const Impl::Place at, impl_->place(path));
  TRY_OK(impl_->begin(*at.volume, "sync " + path, true));
  const SimNodePtr node = at.volume->find(at.path, impl_->node);
  if (!node || !node->is_directory) return no_such(path);
  at.volume->sync_directory(node);
  return ok();
}

Status SimDisk::rename(const std::string& from, const std::string& to) {
  TRY(const Impl::Place a, impl_->place(from));
  TRY(const Impl::Place b, impl_->place(to));
  TRY_OK(impl_->begin(*a.volume, "rename " + from + " to " + to, true));
  if (a.volume != b.volume) return Error(Code::kUnavailable, from + ": another volume than " + to);
  TRY(const auto source, impl_->parent(a, from));
  TRY(const auto target, impl_->parent(b, to));
  const SimNodePtr node = a.volume->look(*source.first, source.second, impl_->node);
  if (!node) return no_such(from);
  if (const SimNodePtr there = a.volume->look(*target.first, target.second, impl_->node)) {
    if (there == node) return ok();
    if (there->is_directory != node->is_directory)
      return Error(Code::kUnavailable,
                   to + (there->is_directory ? " is a" : " is no") + std::string(" directory"));
    for (const auto& [name, about] : there->names)
      if (!about.changes.empty() && about.changes.back().node)
        return Error(Code::kAlreadyExists, to + " is not empty");
  }
  a.volume->change(impl_->node,
                   {{source.first, source.second, nullptr}, {target.first, target.second, node}});
  return ok();
}

Status SimDisk::remove_all(const std::string& path) {
  TRY(const Impl::Place at, impl_->place(path));
  const SimNodePtr node = at.volume->find(at.path, impl_->node);
  if (!node) return ok();
  TRY(const auto parent, impl_->parent(at, path));
  return impl_->remove(*at.volume, parent.first, parent.second, node, path);
}

Result<std::unique_ptr<FileLock>> SimDisk::lock(const std::string& path) {
  TRY(const auto file, open(path, OpenMode::kUpdate));
  TRY(const Impl::Place at, impl_->place(path));
  if (!at.volume->locks.emplace(at.path, impl_.get()).second)
    return Error(Code::kConflict, path + " is locked by another process");
  return std::unique_ptr<FileLock>(std::make_unique<SimLock>(at.volume, at.path, impl_.get()));
}

}  // namespace rubato::testing
