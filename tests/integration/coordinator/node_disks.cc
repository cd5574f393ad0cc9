#include "tests/integration/coordinator/node_disks.h"

#include "tests/integration/coordinator/fuse_folder.h"

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <unistd.h>

namespace rubato {

// One mount, and the thread that answers what the kernel asks for it.
class NodeDisks::View {
 public:
  View(FuseFolder folder, std::filesystem::path path, int device)
      : folder_(std::move(folder)),
        path_(std::move(path)),
        device_(device),
        ends_(::eventfd(0, EFD_CLOEXEC)),
        thread_([this] { serve(); }) {}

  ~View() {
    set(DiskState::kWhole);
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto told = ::write(ends_, &one, sizeof one);
    thread_.join();
    ::close(device_);  // who still waits for an answer gets ENOTCONN
    ::umount2(path_.c_str(), MNT_DETACH);
    ::close(ends_);
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  const std::filesystem::path& path() const { return path_; }

  void set(DiskState state) {
    const std::lock_guard lock(mutex_);
    state_ = state;
    changed_.notify_all();
  }

 private:
  void serve() {
    std::vector<char> request(FuseFolder::kRequestBytes);
    for (;;) {
      pollfd waits[] = {{device_, POLLIN, 0}, {ends_, POLLIN, 0}};
      if (::poll(waits, 2, -1) < 0 && errno != EINTR) return;
      if (waits[1].revents != 0) return;
      const auto got = ::read(device_, request.data(), request.size());
      if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT)) continue;
      if (got < static_cast<ssize_t>(sizeof(fuse_in_header))) return;  // unmounted
      answer(request.data());
    }
  }

  void answer(const char* request) {
    fuse_in_header head;
    std::memcpy(&head, request, sizeof head);
    const char* const body = request + sizeof head;
    const int refused = refuse(head, body);
    FuseFolder::Answer answer;
    if (refused != 0)
      answer.error = refused;
    else
      answer = folder_.answer(head, body);
    if (answer.is_none) return;
    fuse_out_header out{};
    out.unique = head.unique;
    out.error = -answer.error;
    out.len = static_cast<std::uint32_t>(sizeof out + answer.bytes.size());
    std::vector<char> whole(out.len);
    std::memcpy(whole.data(), &out, sizeof out);
    std::ranges::copy(answer.bytes, whole.begin() + sizeof out);
    [[maybe_unused]] const auto put = ::write(device_, whole.data(), whole.size());
  }

  // The error that the broken disk gives, zero if none; a slow one takes its time here.
  int refuse(const fuse_in_header& head, const char* body) {
    if (!folder_.is_touched_by_faults(head, body)) return 0;
    std::unique_lock lock(mutex_);
    switch (state_) {
      case DiskState::kWhole:
        return 0;
      case DiskState::kFull:
        return FuseFolder::needs_space(head) ? ENOSPC : 0;
      case DiskState::kFailing:
        return EIO;
      case DiskState::kSlow:
        changed_.wait_for(lock, kSlowDiskCall, [&] { return state_ != DiskState::kSlow; });
        return 0;
    }
    return 0;
  }

  FuseFolder folder_;
  const std::filesystem::path path_;
  const int device_;
  const int ends_;
  std::mutex mutex_;
  std::condition_variable changed_;
  DiskState state_ = DiskState::kWhole;
  std::thread thread_;
};

Status NodeDisks::enter_mount_namespace() {
  if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, "") != 0)
    return Error(Code::kDenied, std::string("a mount namespace: ") + std::strerror(errno));
  return ok();
}

Status NodeDisks::check_fuse() {
  const int device = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) return Error(Code::kDenied, std::string("/dev/fuse: ") + std::strerror(errno));
  ::close(device);
  return ok();
}

Result<std::unique_ptr<NodeDisks>> NodeDisks::open(
    const std::filesystem::path& folder, const std::vector<std::filesystem::path>& views) {
  auto disks = std::unique_ptr<NodeDisks>(new NodeDisks());
  for (const std::filesystem::path& path : views) {
    TRY(FuseFolder served, FuseFolder::open(folder));
    std::error_code error;
    std::filesystem::create_directories(path, error);
    const int device = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
    const std::string words = fmt::format("fd={},rootmode=40000,user_id={},group_id={},allow_other",
                                          device, ::getuid(), ::getgid());
    if (device < 0 ||
        ::mount("node-disk", path.c_str(), "fuse", MS_NOSUID | MS_NODEV, words.c_str()) != 0) {
      const Error failed(Code::kDenied, path.string() + ": " + std::strerror(errno));
      if (device >= 0) ::close(device);
      return failed;
    }
    disks->views_.push_back(std::make_unique<View>(std::move(served), path, device));
  }
  return disks;
}

NodeDisks::~NodeDisks() = default;

void NodeDisks::set(int node, DiskState state) {
  views_.at(static_cast<std::size_t>(node))->set(state);
}

void NodeDisks::set_all(DiskState state) {
  for (const auto& view : views_) view->set(state);
}

}  // namespace rubato
