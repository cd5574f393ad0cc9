#include "apiserver/memory/journal.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rubato::kube {
namespace {

using json::Value;

Error failed(const std::string& what, const std::string& path) {
  return Error(Code::kInternal, what + " " + path + ": " + std::strerror(errno));
}

std::string header(std::uint64_t version) {
  return json::dump(
             Value::object({{"journal", "rubato"}, {"version", 1}, {"resourceVersion", version}})) +
         "\n";
}

std::string line(const StoreId& id, std::uint64_t version, const Value* object) {
  Value entry = Value::object({{"kind", id.kind}, {"key", id.key}, {"v", version}});
  if (object != nullptr) entry.set("object", *object);
  return json::dump(entry) + "\n";
}

Status write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed("writing", path);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return ok();
}

struct Saved {
  std::map<StoreId, Value> objects;
  std::uint64_t version = 0;
  std::size_t lines = 0;
  std::size_t good_bytes = 0;  // what follows is a torn line
};

Result<Saved> read_saved(const std::string& path) {
  Saved saved;
  std::ifstream in(path, std::ios::binary);
  if (!in) return saved;
  std::ostringstream all;
  all << in.rdbuf();
  const std::string text = all.str();
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;  // torn
    const auto entry = json::parse(std::string_view(text).substr(at, end - at));
    if (!entry.ok() || !entry->is_object()) {
      if (end + 1 == text.size()) break;  // torn, with a newline by chance
      return Error(Code::kInvalid,
                   path + " line " + std::to_string(saved.lines + 1) + " cannot be read");
    }
    const Value& value = *entry;
    if (saved.lines == 0 && value["journal"].string_view_or("") != "rubato")
      return Error(Code::kInvalid, path + " is not a journal of rubato-apiserver");
    const StoreId id{value["kind"].string_or(""), value["key"].string_or("")};
    saved.version =
        static_cast<std::uint64_t>(value[saved.lines == 0 ? "resourceVersion" : "v"].int_or(0));
    if (saved.lines > 0) {
      if (const Value* object = value.find("object"))
        saved.objects.insert_or_assign(id, *object);
      else
        saved.objects.erase(id);
    }
    ++saved.lines;
    at = end + 1;
    saved.good_bytes = at;
  }
  return saved;
}

}  // namespace

// Used under the server's mutex, except by flush().
struct Journal::File {
  std::string path;
  Clock* clock = nullptr;
  mutable std::mutex mutex;
  int fd = -1;
  std::size_t lines = 0;
  MonoTime synced{};
  std::set<StoreId> present;  // what the next compaction would keep
  std::optional<Error> failure;

  ~File() {
    if (fd < 0) return;
    ::fdatasync(fd);
    ::close(fd);
  }

  void append(const StoreId& id, std::uint64_t version, const Value* object) {
    const std::lock_guard lock(mutex);
    if (failure) return;
    if (object != nullptr)
      present.insert(id);
    else
      present.erase(id);
    if (auto written = write_all(fd, line(id, version, object), path); !written.ok()) {
      failure = written.error();
      return;
    }
    ++lines;
    const MonoTime now = clock->now();
    if (now - synced < kSyncPeriod) return;
    ::fdatasync(fd);
    synced = now;
  }

  bool wants_compaction() const {
    const std::lock_guard lock(mutex);
    return lines > kCompactMinLines && lines > kCompactFactor * (present.size() + 1);
  }

  // Writes the whole state beside the file and takes its place.
  Status rewrite(const ObjectStore& store) {
    const std::lock_guard lock(mutex);
    const std::string fresh = path + ".new";
    const int out = ::open(fresh.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    if (out < 0) return failed("creating", fresh);
    Status done = write_all(out, header(store.version()), fresh);
    std::size_t count = 1;
    for (const std::string& kind : store.kinds())
      for (const auto& [key, object] : store.objects(kind)) {
        if (done.ok()) done = write_all(out, line({kind, key}, store.version(), &object), fresh);
        ++count;
      }
    if (done.ok() && (::fsync(out) != 0 || ::rename(fresh.c_str(), path.c_str()) != 0))
      done = failed("replacing", path);
    if (!done.ok()) {
      ::close(out);
      return done;
    }
    ::close(fd);
    fd = out;
    lines = count;
    return ok();
  }
};

Result<std::unique_ptr<Journal>> Journal::attach(MemoryServer& server, const std::string& path) {
  TRY(Saved saved, read_saved(path));
  std::unique_ptr<Journal> journal(new Journal(server));
  auto file = std::make_shared<File>();
  file->path = path;
  file->clock = &server.clock();
  file->fd = ::open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  if (file->fd < 0) return failed("opening", path);
  if (::ftruncate(file->fd, static_cast<off_t>(saved.good_bytes)) != 0)
    return failed("truncating", path);
  if (saved.lines == 0) {
    TRY_OK(write_all(file->fd, header(0), path));
    saved.lines = 1;
  }
  file->lines = saved.lines;
  for (const auto& [id, object] : saved.objects) file->present.insert(id);
  journal->file_ = file;
  server.load(
      [&](ObjectStore& store) {
        for (auto& [id, object] : saved.objects) store.restore(id, object);
        store.restore_version(saved.version);
      },
      [file](const StoreId& id, std::uint64_t version, const Value* object) {
        file->append(id, version, object);
      });
  return journal;
}

Journal::~Journal() {
  server_.follow(nullptr);
  (void)flush();
}

Status Journal::flush() {
  if (file_->wants_compaction()) {
    Status done = ok();
    server_.visit([&](const ObjectStore& store) { done = file_->rewrite(store); });
    if (!done.ok()) return done;
  }
  const std::lock_guard lock(file_->mutex);
  if (file_->failure) return *file_->failure;
  if (::fdatasync(file_->fd) != 0) return failed("syncing", file_->path);
  return ok();
}

Status Journal::health() const {
  const std::lock_guard lock(file_->mutex);
  if (file_->failure) return *file_->failure;
  return ok();
}

}  // namespace rubato::kube
